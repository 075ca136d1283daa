//! The one source of randomness of a simulation.
//!
//! The standard library, `uuid` and `rand` all take random bytes from the C function `getrandom`, by a symbol that a
//! program may define itself. This one does: on a thread that has a seed they follow from it, and with them hash maps,
//! tokio's choice among ready branches, election timeouts and session ids. Keys of certificates are made by `ring`, which
//! asks the kernel itself; nothing of them is in a history.

use std::{cell::Cell, fs::File, io::Read};

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on all random bytes on this thread follow from that seed.
pub(crate) fn seed_this_thread(seed: u64) {
    SEED.set(Some(seed));
}

/// Whether that is so: on another platform nobody may ask for the symbol.
pub(crate) fn is_ours() -> bool {
    let before = SEED.get();
    let _ = uuid::Uuid::new_v4();
    SEED.get() != before
}

/// Fills a buffer with random bytes.
///
/// # Safety
/// As the C library's: the buffer is that long.
#[allow(unsafe_code, reason = "a C function is defined, whose caller passes a pointer and a length")]
#[unsafe(no_mangle)]
extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    match SEED.try_with(Cell::get).ok().flatten() {
        Some(seed) => {
            let mut random = Random(seed);
            bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]));
            SEED.set(Some(random.0));
        }
        None => {
            let filled = File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
            if filled.is_err() {
                return -1;
            }
        }
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}

/// SplitMix64: small, and good enough to choose faults with.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// A stream of its own for each use, so that none shifts another.
    pub(crate) fn of(seed: u64, label: &str) -> Self {
        let digest = tickhost_ledger::Digest::of(format!("{seed} {label}").as_bytes());
        Self(u64::from_le_bytes(std::array::from_fn(|i| digest.0[i])))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Less than `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let at = self.below(from.len() as u64);
        &from[usize::try_from(at).unwrap_or_default()]
    }
}
