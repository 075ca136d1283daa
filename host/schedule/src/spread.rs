//! Spread: values that are picked by the job's name, so that not everything is due at `:00`.
//!
//! The pick never changes for a name and a field, on any node and in any version: golden vectors in the tests hold
//! it. It is FNV-1a (64 bits) over the name, a zero byte, and the field's name, mixed by the finaliser of
//! SplitMix64 so that names that differ in one letter land far apart, and scaled to the number of choices by the
//! upper half of a product, which favours no value.

/// A number in `0..choices` for that name and purpose.
pub(crate) fn pick(name: &str, purpose: &str, choices: u32) -> u32 {
    let hash = mix(fnv(name.bytes().chain([0]).chain(purpose.bytes())));
    // Below `choices`, so it fits.
    ((u128::from(hash) * u128::from(choices)) >> 64) as u32
}

fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10,000 jobs over the 1,440 minutes of `? ? * * *`, for several kinds of names: not further from even than
    /// a uniform draw is in 999,999 of a million cases.
    #[test]
    fn names_fill_the_day_evenly() {
        type Name = fn(u32) -> String;
        let shapes: [(&str, Name); 4] = [
            ("the last digits differ", |n| format!("billing/job-{n:05}")),
            ("the namespaces differ", |n| format!("team-{n}/nightly")),
            ("anagrams", anagram),
            ("short names", |n| format!("a/{n:x}")),
        ];
        for (what, name) in shapes {
            let mut minutes = vec![0_u32; 1_440];
            for n in 0..10_000 {
                let name = name(n);
                minutes[(pick(&name, "hour", 24) * 60 + pick(&name, "minute", 60)) as usize] += 1;
            }
            let expected = 10_000.0 / 1_440.0;
            let chi_square: f64 = minutes.iter().map(|n| (f64::from(*n) - expected).powi(2) / expected).sum();
            // 1,439 degrees of freedom: mean 1,439, standard deviation 53.6; 4.9 of them to either side.
            assert!((1_176.0..=1_702.0).contains(&chi_square), "{what}: {chi_square}");
        }
    }

    /// The n-th order of eight letters.
    fn anagram(mut n: u32) -> String {
        let mut letters: Vec<char> = "backuprs".chars().collect();
        let mut name = String::from("ops/");
        while !letters.is_empty() {
            let at = n as usize % letters.len();
            n /= letters.len() as u32;
            name.push(letters.remove(at));
        }
        name
    }

    #[test]
    fn picks_are_what_they_were() {
        let golden = [
            ("billing/nightly", "minute", 60, 36),
            ("billing/nightly", "hour", 24, 18),
            ("billing/nightly", "window", 1_800, 1604),
            ("a/b", "day-of-month", 28, 1),
        ];
        let found: Vec<u32> = golden.iter().map(|(name, purpose, choices, _)| pick(name, purpose, *choices)).collect();
        let expected: Vec<u32> = golden.iter().map(|(.., expected)| *expected).collect();
        assert_eq!(found, expected);
    }
}
