//! What goes wrong in a simulation, and when: all of it follows from the seed before anything begins.

use std::collections::BTreeMap;

use tickhost_replica::fault::POINTS;

use crate::entropy::Random;

/// Something that happens to the nodes.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// The process of a node is killed; its disk keeps what was written.
    Kill { node: u64, down_ms: u64 },
    /// The power of a node fails.
    PowerOff { node: u64, down_ms: u64 },
    /// That of all of them.
    PowerOffAll { down_ms: u64 },
    /// The node is killed the next time that it comes by that point.
    KillAt { node: u64, point: &'static str, count: u32 },
    /// Nothing that a node sends arrives, or nothing that is sent to it, or neither.
    Cut { node: u64, out: bool, inward: bool },
    /// All links are whole again.
    Mend,
    /// Everything from and to a node takes up to that much longer.
    SlowLink { node: u64, ms: u64 },
    /// A node does nothing for a while. Its timers go on, or the whole machine sleeps.
    Freeze { node: u64, ms: u64, timers_go_on: bool },
    /// A wall clock is wrong by that much.
    Clock { node: u64, wrong_ms: i64 },
    /// Each sync of a node takes that much longer.
    SlowDisk { node: u64, ms: u64 },
    /// The next sync of a node fails.
    SyncFails { node: u64 },
    /// A disk is full, or no longer.
    Full { node: u64, is_full: bool },
    /// Whoever leads hands over.
    Transfer,
    /// A node joins.
    Join,
    /// The disk of a node is remembered.
    KeepDisk { node: u64 },
    /// The disk of a node is empty, or what was remembered, when its process begins again.
    Spoil { node: u64, to_nothing: bool },
    /// A node is let go.
    Remove { node: u64 },
}

impl Action {
    /// Whether something goes wrong by it; else it ends what did, or prepares it. A death at a point is none before the
    /// point is come by.
    pub(crate) fn is_fault(&self) -> bool {
        !matches!(
            self,
            Self::Mend
                | Self::KillAt { .. }
                | Self::KeepDisk { .. }
                | Self::SlowLink { ms: 0, .. }
                | Self::SlowDisk { ms: 0, .. }
                | Self::Clock { wrong_ms: 0, .. }
                | Self::Full { is_full: false, .. }
        )
    }
}

/// When what happens, in milliseconds from the beginning of the faults.
pub(crate) struct Plan {
    pub(crate) actions: BTreeMap<(u64, u64), Action>,
}

/// The kinds of faults; a simulation leaves some of them out, so that others are seen alone.
pub(crate) const KINDS: [&str; 13] = [
    "kill",
    "power",
    "all",
    "point",
    "cut",
    "slow-link",
    "freeze",
    "clock",
    "slow-disk",
    "sync",
    "full",
    "transfer",
    "member",
];

impl Plan {
    /// Faults for that many nodes and milliseconds. `only` leaves all other kinds out.
    pub(crate) fn of(seed: u64, nodes: u64, faults_ms: u64, only: &[&str]) -> Self {
        let mut random = Random::of(seed, "plan");
        let kinds: Vec<&str> = match only {
            [] => KINDS.into_iter().filter(|_| random.chance(65)).collect(),
            only => only.to_vec(),
        };
        let mut plan = Self { actions: BTreeMap::new() };
        let mut at_ms = random.between(500, 3_000);
        // One clock is wrong in a simulation: what most of them show is right by definition.
        let clock_node = random.between(1, nodes);
        let is_on = |kind: &str| kinds.contains(&kind);
        while at_ms < faults_ms && !kinds.is_empty() {
            let kind = *random.pick(&kinds);
            plan.fault(&mut random, kind, at_ms, nodes, clock_node);
            // Some faults meet each other, and between others there is peace.
            at_ms += if random.chance(30) { random.between(50, 1_000) } else { random.between(1_000, 8_000) };
        }
        if is_on("member") {
            plan.membership(&mut random, nodes, faults_ms);
        }
        plan
    }

    fn add(&mut self, at_ms: u64, action: Action) {
        let n = self.actions.len() as u64;
        self.actions.insert((at_ms, n), action);
    }

    fn fault(&mut self, random: &mut Random, kind: &str, at_ms: u64, nodes: u64, clock_node: u64) {
        let node = random.between(1, nodes);
        let down_ms = match random.below(10) {
            0..2 => random.between(15_000, 25_000),
            2..5 => random.between(5, 100),
            _ => random.between(100, 3_000),
        };
        match kind {
            "kill" => self.add(at_ms, Action::Kill { node, down_ms }),
            "power" => self.add(at_ms, Action::PowerOff { node, down_ms }),
            "all" => self.add(at_ms, Action::PowerOffAll { down_ms: random.between(100, 2_000) }),
            "point" => {
                let (point, count) = (*random.pick(&POINTS), u32::try_from(random.between(1, 5)).unwrap_or(1));
                self.add(at_ms, Action::KillAt { node, point, count });
            }
            "cut" => {
                let (out, inward) = *random.pick(&[(true, true), (true, true), (true, false), (false, true)]);
                self.add(at_ms, Action::Cut { node, out, inward });
                let for_ms =
                    if random.chance(30) { random.between(14_000, 24_000) } else { random.between(200, 5_000) };
                self.add(at_ms + for_ms, Action::Mend);
            }
            "slow-link" => {
                self.add(at_ms, Action::SlowLink { node, ms: random.between(20, 400) });
                self.add(at_ms + random.between(1_000, 8_000), Action::SlowLink { node, ms: 0 });
            }
            "freeze" => {
                let ms = if random.chance(30) { random.between(14_000, 22_000) } else { random.between(100, 4_000) };
                self.add(at_ms, Action::Freeze { node, ms, timers_go_on: random.chance(70) });
            }
            "clock" => {
                let far = i64::try_from(random.between(600, 3_600_000)).unwrap_or_default();
                let near = i64::try_from(random.between(10, 5_000)).unwrap_or_default();
                let wrong_ms = *random.pick(&[far, -far, near, -near]);
                self.add(at_ms, Action::Clock { node: clock_node, wrong_ms });
                self.add(at_ms + random.between(2_000, 15_000), Action::Clock { node: clock_node, wrong_ms: 0 });
            }
            "slow-disk" => {
                self.add(at_ms, Action::SlowDisk { node, ms: random.between(20, 1_500) });
                self.add(at_ms + random.between(500, 5_000), Action::SlowDisk { node, ms: 0 });
            }
            "sync" => self.add(at_ms, Action::SyncFails { node }),
            "full" => {
                self.add(at_ms, Action::Full { node, is_full: true });
                self.add(at_ms + random.between(500, 8_000), Action::Full { node, is_full: false });
            }
            // Who belongs to the cluster is changed once, beside these.
            _ => self.add(at_ms, Action::Transfer),
        }
    }

    /// A disk that is not what it was is found out by the others, its node is let go, and another one joins.
    fn membership(&mut self, random: &mut Random, nodes: u64, faults_ms: u64) {
        let node = random.between(1, nodes);
        self.add(random.between(1, faults_ms / 4), Action::KeepDisk { node });
        let at_ms = faults_ms + 20_000;
        self.add(at_ms, Action::Spoil { node, to_nothing: random.chance(50) });
        self.add(at_ms + 6_000, Action::Remove { node });
        self.add(random.between(faults_ms / 4, faults_ms), Action::Join);
    }
}
