//! The newest entries of the log as they were appended, so that replicating and applying them reads nothing back.

use std::{collections::VecDeque, ops::Range};

use openraft::{alias::EntryOf, entry::RaftEntry};

use crate::raft::Types;

/// Bytes of entries that are kept, as they are encoded: more than nodes that keep up lack of each other.
const BYTES_MAX: usize = 8 << 20;

/// A run of entries without a gap, the newest last. What is in it is in the database too.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    entries: VecDeque<(EntryOf<Types>, usize)>,
    bytes: usize,
}

impl Tail {
    /// Appends an entry that takes so many bytes.
    pub(crate) fn push(&mut self, entry: EntryOf<Types>, bytes: usize) {
        if self.entries.back().is_some_and(|(last, _)| last.index() + 1 != entry.index()) {
            self.clear();
        }
        self.bytes += bytes;
        self.entries.push_back((entry, bytes));
        while self.bytes > BYTES_MAX {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        self.bytes -= self.entries.pop_front().map_or(0, |(_, bytes)| bytes);
    }

    /// Forgets the entries from that index on.
    pub(crate) fn cut(&mut self, from: u64) {
        while let Some((_, bytes)) = self.entries.pop_back_if(|(last, _)| last.index() >= from) {
            self.bytes -= bytes;
        }
    }

    /// Forgets the entries up to that index.
    pub(crate) fn purge(&mut self, to: u64) {
        while self.entries.front().is_some_and(|(first, _)| first.index() <= to) {
            self.drop_first();
        }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }

    /// The entries of a range: at least one, and no more once they have that many bytes. `None` where not all of them
    /// are here.
    pub(crate) fn entries(&self, range: Range<u64>, bytes_max: usize) -> Option<Vec<EntryOf<Types>>> {
        let (first, last) = (self.entries.front()?.0.index(), self.entries.back()?.0.index());
        if range.start < first || range.end > last + 1 {
            return None;
        }
        let skipped = usize::try_from(range.start - first).ok()?;
        let count = usize::try_from(range.end.saturating_sub(range.start)).ok()?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (entry, size) in self.entries.iter().skip(skipped).take(count) {
            if bytes >= bytes_max {
                break;
            }
            bytes += size;
            entries.push(entry.clone());
        }
        Some(entries)
    }
}

#[cfg(test)]
mod tests {
    use openraft::alias::LogIdOf;

    use super::*;

    fn entry(index: u64) -> EntryOf<Types> {
        EntryOf::<Types>::new_blank(LogIdOf::<Types>::new_term_index(1, index))
    }

    fn tail(range: Range<u64>, bytes: usize) -> Tail {
        let mut tail = Tail::default();
        range.for_each(|index| tail.push(entry(index), bytes));
        tail
    }

    fn indexes(tail: &Tail, range: Range<u64>, bytes_max: usize) -> Option<Vec<u64>> {
        Some(tail.entries(range, bytes_max)?.iter().map(RaftEntry::index).collect())
    }

    #[test]
    fn what_is_not_all_here_is_not_answered() {
        let tail = tail(5..9, 10);
        assert_eq!(indexes(&tail, 5..9, usize::MAX), Some(vec![5, 6, 7, 8]));
        assert_eq!(indexes(&tail, 6..8, usize::MAX), Some(vec![6, 7]));
        assert_eq!(indexes(&tail, 6..6, usize::MAX), Some(vec![]));
        assert_eq!(indexes(&tail, 4..6, usize::MAX), None);
        assert_eq!(indexes(&tail, 8..10, usize::MAX), None);
        assert_eq!(indexes(&Tail::default(), 0..1, usize::MAX), None);
        assert_eq!(indexes(&tail, 5..9, 1), Some(vec![5]), "at least one");
        assert_eq!(indexes(&tail, 5..9, 11), Some(vec![5, 6]));
    }

    #[test]
    fn it_is_bounded_and_has_no_gap() {
        let mut tail = tail(1..20, BYTES_MAX / 4);
        assert_eq!(indexes(&tail, 16..20, usize::MAX), Some(vec![16, 17, 18, 19]));
        assert_eq!(indexes(&tail, 15..20, usize::MAX), None);
        tail.cut(18);
        assert_eq!(indexes(&tail, 16..18, usize::MAX), Some(vec![16, 17]));
        assert_eq!(indexes(&tail, 17..19, usize::MAX), None);
        tail.push(entry(18), 1);
        tail.purge(16);
        assert_eq!(indexes(&tail, 17..19, usize::MAX), Some(vec![17, 18]));
        assert_eq!(indexes(&tail, 16..19, usize::MAX), None);
        // A snapshot was installed in between.
        tail.push(entry(40), 1);
        assert_eq!(indexes(&tail, 40..41, usize::MAX), Some(vec![40]));
        assert_eq!((indexes(&tail, 17..19, usize::MAX), tail.bytes), (None, 1));
        tail.cut(0);
        assert_eq!(tail.bytes, 0);
    }
}
