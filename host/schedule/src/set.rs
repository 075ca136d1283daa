//! A set of small numbers: the values that one field stands for.

use crate::Field;

/// Numbers from 0 to 191; a year counts from 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Set([u64; 3]);

impl Set {
    pub(crate) fn insert(&mut self, value: u32) {
        self.0[value as usize / 64] |= 1 << (value % 64);
    }

    pub(crate) fn remove(&mut self, value: u32) {
        self.0[value as usize / 64] &= !(1 << (value % 64));
    }

    pub(crate) fn contains(&self, value: u32) -> bool {
        self.0[value as usize / 64] & 1 << (value % 64) != 0
    }

    pub(crate) fn union(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine |= theirs;
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let words = self.0;
        (0..192).filter(move |value| words[*value as usize / 64] & 1 << (value % 64) != 0)
    }

    /// The smallest member from `from` on.
    pub(crate) fn first_from(&self, from: u32) -> Option<u32> {
        let word = from as usize / 64;
        let head = self.0.get(word)? & (!0 << (from % 64));
        let rest = (word + 1..3).map(|at| (at, self.0[at]));
        let (at, bits) = std::iter::once((word, head)).chain(rest).find(|(_, bits)| *bits != 0)?;
        Some(at as u32 * 64 + bits.trailing_zeros())
    }

    /// The first 64 members as bits.
    pub(crate) fn low(&self) -> u64 {
        self.0[0]
    }
}

impl FromIterator<u32> for Set {
    fn from_iter<I: IntoIterator<Item = u32>>(values: I) -> Self {
        let mut set = Self::default();
        values.into_iter().for_each(|value| set.insert(value));
        set
    }
}

/// Where a field's values begin in a [`Set`].
pub(crate) fn base(field: Field) -> u32 {
    if field == Field::Year { field.bounds().0 } else { 0 }
}
