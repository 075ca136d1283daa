//! Does things to a cluster, again and again, and judges by what an outsider saw.
//!
//! Each fault has to meet its moment: a point at which a host was to kill itself and did not come by fails the run, and
//! so does a frozen leader that nobody replaced.

use std::{
    collections::BTreeMap,
    fmt,
    os::unix::process::ExitStatusExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tickhost_replica::fault::POINTS;

use crate::{
    cluster::{Cluster, Place, SOON},
    host::{is_open, until},
    judge::{JOBS, Ticks, judge, look, manifest},
    kill::Random,
    network::Network,
    recorder::{Behaviour, Recorder},
    syncs::Syncs,
};

/// Points that only a leader comes by; the others belong to an executor, and runs go to those that do not lead.
const LEADERS_POINTS: [&str; 2] = ["intent-proposed", "intent-committed"];
/// Long enough for another to be elected, short enough for the session.
const FREEZE: Duration = Duration::from_millis(1_500);
/// Longer than a session holds.
const FREEZE_LONG: Duration = Duration::from_secs(17);
const POINT_WITHIN: Duration = Duration::from_secs(30);
/// Longer than an election takes to begin.
const SLOW: Duration = Duration::from_millis(300);
/// SIGABRT: what a process does to itself that cannot sync.
const ABORTED: i32 = 6;

/// A test to run.
pub struct FaultTest {
    /// How many faults.
    pub faults: usize,
    /// Decides kinds and moments.
    pub seed: u64,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A host kills itself at a point.
    At(&'static str),
    KillLeader,
    KillFollower,
    FreezeLeader,
    FreezeFollower,
    /// Past its session.
    FreezeFollowerLong,
    Transfer,
    /// As an upgrade does.
    Restart,
    /// The leader and the others do not reach each other.
    CutLeader,
    /// A follower and the others do not.
    CutFollower,
    /// Past its session.
    CutFollowerLong,
    /// What the leader sends does not arrive.
    MuteLeader,
    /// What the others send to the leader does not arrive.
    DeafLeader,
    /// A node's syncs take long.
    SlowDisk,
    /// A node's syncs fail.
    BrokenDisk,
}

impl Fault {
    fn needs_network(self) -> bool {
        use Fault::*;
        matches!(self, CutLeader | CutFollower | CutFollowerLong | MuteLeader | DeafLeader)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(point) => write!(f, "killed at {point}"),
            Self::KillLeader => f.write_str("leader killed"),
            Self::KillFollower => f.write_str("follower killed"),
            Self::FreezeLeader => f.write_str("leader frozen past its lease and thawed"),
            Self::FreezeFollower => f.write_str("follower frozen"),
            Self::FreezeFollowerLong => f.write_str("follower frozen past its session"),
            Self::Transfer => f.write_str("leadership handed over"),
            Self::Restart => f.write_str("restarted"),
            Self::CutLeader => f.write_str("leader cut off"),
            Self::CutFollower => f.write_str("follower cut off"),
            Self::CutFollowerLong => f.write_str("follower cut off past its session"),
            Self::MuteLeader => f.write_str("leader not heard by the others"),
            Self::DeafLeader => f.write_str("leader does not hear the others"),
            Self::SlowDisk => f.write_str("disk slow"),
            Self::BrokenDisk => f.write_str("disk broken"),
        }
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    pub(crate) hits: BTreeMap<String, usize>,
    verdicts: BTreeMap<String, usize>,
    requests: usize,
    pub(crate) elapsed: Duration,
    /// What must not be: empty in a test that passes.
    pub faults: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: usize = self.hits.values().sum();
        writeln!(f, "{all} faults in {} s, {} requests recorded", self.elapsed.as_secs(), self.requests)?;
        for (fault, count) in &self.hits {
            writeln!(f, "  {count:4} {fault}")?;
        }
        writeln!(f, "verdicts: {:?}", self.verdicts)?;
        for fault in &self.faults {
            writeln!(f, "FAULT: {fault}")?;
        }
        write!(f, "{} faults of the cluster", self.faults.len())
    }
}

/// A cluster with the four jobs, and what was seen of it.
pub(crate) struct Trial {
    pub(crate) cluster: Cluster,
    network: Option<Arc<Network>>,
    /// Of each node.
    syncs: Vec<Syncs>,
    seen: Ticks,
    /// Milliseconds at which something was done, or its effect may have lasted.
    moments_ms: Vec<i64>,
}

impl FaultTest {
    /// Runs it in a folder.
    pub async fn run(&self, dir: &Path) -> Report {
        let began = Instant::now();
        let behaviour = Behaviour { charge_delay: Duration::from_millis(20), ..Behaviour::default() };
        let recorder = Recorder::start(behaviour).await.expect("start the recorder");
        let network = match Network::new(3) {
            Ok(network) => Some(Arc::new(network)),
            Err(why) => {
                println!("no cables are cut: {why}");
                None
            }
        };
        if let Some(network) = &network {
            network.let_out(recorder.address());
        }
        let syncs: Vec<Syncs> = (1..=3).map(|n| Syncs::new(&dir.join(format!("syncs-{n}")))).collect();
        let place = |n: usize| Place {
            room: network.clone().map(|network| (network, n)),
            under: syncs[n - 1].under(),
            program: None,
        };
        let cluster = Cluster::start_in(dir, 3, 0, "", place).await;
        cluster.apply(&manifest(dir, &recorder.url()));
        cluster.until_warm(1).await;
        let mut trial = Trial { network, syncs, ..Trial::of(cluster) };
        let mut random = Random(self.seed);
        let mut report = Report::default();
        for n in 0..self.faults {
            let fault = choose(n, trial.network.is_some(), &mut random);
            if let Err(why) = trial.inflict(fault, &mut random).await {
                report.faults.push(format!("{fault}: {why}"));
            }
            *report.hits.entry(fault.to_string()).or_default() += 1;
            trial.cluster.until_whole(3, 3).await;
            trial.rest(Duration::from_millis(500 + random.below(1_000))).await;
        }
        trial.finish(&recorder, &mut report).await;
        report.elapsed = began.elapsed();
        report
    }
}

/// The points and the others in turn, so that none is left out in a long run; the long ones seldom.
fn choose(n: usize, has_network: bool, random: &mut Random) -> Fault {
    use Fault::*;
    const OTHERS: [Fault; 18] = [
        CutLeader,
        KillLeader,
        FreezeLeader,
        MuteLeader,
        SlowDisk,
        DeafLeader,
        BrokenDisk,
        CutFollower,
        KillFollower,
        Transfer,
        FreezeFollower,
        Restart,
        CutLeader,
        KillLeader,
        SlowDisk,
        FreezeLeader,
        FreezeFollowerLong,
        CutFollowerLong,
    ];
    if n.is_multiple_of(2) {
        return At(POINTS[(n / 2) % POINTS.len()]);
    }
    match OTHERS[(n / 2) % OTHERS.len()] {
        fault if fault.needs_network() && !has_network => {
            if random.below(2) == 0 {
                KillLeader
            } else {
                FreezeLeader
            }
        }
        fault => fault,
    }
}

impl Trial {
    pub(crate) fn of(cluster: Cluster) -> Self {
        Self { cluster, network: None, syncs: Vec::new(), seen: Ticks::new(), moments_ms: Vec::new() }
    }

    /// Pauses the jobs, waits for every verdict, and judges.
    pub(crate) async fn finish(&mut self, recorder: &Recorder, report: &mut Report) {
        for (job, _) in JOBS {
            let paused = self.cluster.any().up().cli(&["pause", &format!("kill/{job}"), "--note", "the test is over"]);
            assert!(paused.status.success(), "{}", String::from_utf8_lossy(&paused.stderr));
        }
        let until_settled = Instant::now();
        loop {
            self.look().await;
            if self.seen.values().all(|s| !s.verdict.is_empty() && !is_open(&s.verdict)) {
                break;
            }
            assert!(until_settled.elapsed() < SOON, "a launch has no verdict");
        }
        for (job, _) in JOBS {
            let gaps = self.cluster.any().up().cli(&["ticks", &format!("kill/{job}"), "--gaps"]);
            if !gaps.status.success() {
                report.faults.push(String::from_utf8_lossy(&gaps.stderr).into_owned());
            }
        }
        self.cluster.until_equal().await;
        let judgement = judge(recorder, &self.seen, &self.moments_ms);
        report.verdicts = judgement.verdicts;
        report.requests = judgement.requests;
        report.faults.extend(judgement.faults);
    }

    pub(crate) fn mark(&mut self) {
        self.moments_ms.push(chrono::Utc::now().timestamp_millis());
    }

    /// Reads the verdicts from whichever node answers.
    async fn look(&mut self) {
        let up = self.cluster.nodes.iter().filter_map(|node| node.process.as_ref());
        for host in up {
            if host.get("/v1/status").await.is_some_and(|status| !status["leader"].is_null()) {
                return look(host, &mut self.seen).await;
            }
        }
    }

    pub(crate) async fn rest(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.look().await;
        }
    }

    /// Lets a fault last: all that lives meanwhile may end otherwise because of it.
    async fn last(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.mark();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.mark();
    }

    async fn follower(&self, random: &mut Random) -> u64 {
        let leader = self.cluster.leader().await;
        let others: Vec<u64> = (1..=3).filter(|node| *node != leader).collect();
        others[usize::try_from(random.below(2)).unwrap_or_default()]
    }

    async fn inflict(&mut self, fault: Fault, random: &mut Random) -> Result<(), String> {
        match fault {
            Fault::At(point) => self.kill_at(point, random).await,
            Fault::KillLeader => {
                let leader = self.cluster.leader().await;
                tokio::time::sleep(Duration::from_millis(random.below(1_000))).await;
                self.kill(leader).await;
                Ok(())
            }
            Fault::KillFollower => {
                let follower = self.follower(random).await;
                tokio::time::sleep(Duration::from_millis(random.below(1_000))).await;
                self.kill(follower).await;
                Ok(())
            }
            Fault::FreezeLeader => {
                let leader = self.cluster.leader().await;
                self.freeze(leader, FREEZE).await;
                // Frozen for three leases: somebody else has been elected.
                match self.cluster.leader().await {
                    now if now == leader => Err(format!("node {leader} leads as before")),
                    _ => Ok(()),
                }
            }
            Fault::FreezeFollower => {
                let follower = self.follower(random).await;
                self.freeze(follower, FREEZE).await;
                Ok(())
            }
            Fault::FreezeFollowerLong => {
                let follower = self.follower(random).await;
                self.freeze(follower, FREEZE_LONG).await;
                Ok(())
            }
            Fault::Transfer => {
                self.mark();
                let output = self.cluster.any().up().cli(&["cluster", "transfer"]);
                self.mark();
                if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
            }
            Fault::CutLeader | Fault::MuteLeader | Fault::DeafLeader => {
                let leader = self.cluster.leader().await;
                self.cut(fault, leader)?;
                // Somebody else leads while it lasts: the others agree on it.
                let replaced = self.until_replaced(leader).await;
                self.last(Duration::from_millis(random.below(1_500))).await;
                self.heal().await;
                replaced
            }
            Fault::CutFollower | Fault::CutFollowerLong => {
                let follower = self.follower(random).await;
                self.cut(fault, follower)?;
                self.last(if fault == Fault::CutFollower { FREEZE } else { FREEZE_LONG }).await;
                self.heal().await;
                Ok(())
            }
            Fault::SlowDisk => {
                let number = 1 + random.below(3);
                let before = self.syncs_of(number).count();
                self.syncs_of(number).slow(SLOW);
                self.last(2 * FREEZE).await;
                self.syncs_of(number).slow(Duration::ZERO);
                if self.syncs_of(number).count() > before { Ok(()) } else { Err("it synced nothing".into()) }
            }
            Fault::BrokenDisk => {
                let number = 1 + random.below(3);
                self.mark();
                self.syncs_of(number).fail(true);
                let node = self.cluster.node(number);
                let ended = until("the process ends", SOON, async || node.process.as_mut()?.ended()).await;
                self.syncs_of(number).fail(false);
                self.last(Duration::from_millis(700)).await;
                self.cluster.node(number).start().await;
                self.mark();
                if ended.signal() == Some(ABORTED) { Ok(()) } else { Err(format!("it ended with {ended}")) }
            }
            Fault::Restart => {
                let number = 1 + random.below(3);
                self.stop(number).await;
                self.cluster.node(number).start().await;
                Ok(())
            }
        }
    }

    fn syncs_of(&self, number: u64) -> &Syncs {
        &self.syncs[usize::try_from(number).unwrap_or_default() - 1]
    }

    fn cut(&mut self, fault: Fault, number: u64) -> Result<(), String> {
        self.mark();
        let network = self.network.as_ref().ok_or("there are no cables")?;
        let node = usize::try_from(number).map_err(|e| e.to_string())?;
        let others = (1..=3).filter(|other| *other != node);
        match fault {
            Fault::MuteLeader => others.for_each(|other| network.cut(node, other)),
            Fault::DeafLeader => others.for_each(|other| network.cut(other, node)),
            _ => network.cut_off(node),
        }
        Ok(())
    }

    async fn heal(&mut self) {
        if let Some(network) = &self.network {
            network.heal();
        }
        self.last(Duration::from_millis(300)).await;
    }

    /// Waits until the two others agree that one of them leads.
    async fn until_replaced(&mut self, leader: u64) -> Result<(), String> {
        let until = Instant::now() + POINT_WITHIN;
        while Instant::now() < until {
            self.mark();
            let mut seen = Vec::new();
            for node in self.cluster.nodes.iter().filter(|node| node.number != leader) {
                let status = node.up().get("/v1/status").await.unwrap_or_default();
                seen.push(status["leader"].as_u64());
            }
            if seen[0].is_some_and(|now| now != leader) && seen.iter().all(|one| *one == seen[0]) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(format!("nobody replaced node {leader} within {POINT_WITHIN:?}"))
    }

    /// In good order: what it ran has ended before.
    pub(crate) async fn stop(&mut self, number: u64) {
        let node = self.cluster.node(number);
        node.up().terminate();
        until("it stops in good order", SOON, async || node.process.as_mut()?.has_stopped().then_some(())).await;
    }

    async fn kill(&mut self, number: u64) {
        self.mark();
        self.cluster.node(number).kill();
        self.last(Duration::from_millis(700)).await;
        self.cluster.node(number).start().await;
        self.mark();
    }

    async fn freeze(&mut self, number: u64, time: Duration) {
        self.cluster.node(number).up().signal(Signal::STOP);
        self.last(time).await;
        self.cluster.node(number).up().signal(Signal::CONT);
        self.last(Duration::from_millis(300)).await;
    }

    async fn kill_at(&mut self, point: &'static str, random: &mut Random) -> Result<(), String> {
        let number = self.follower(random).await;
        self.stop(number).await;
        let armed = format!("{point}:{}", 1 + random.below(3));
        let node = self.cluster.node(number);
        node.spawn(Some(&armed), &[]);
        let leads = LEADERS_POINTS.contains(&point);
        let began = Instant::now();
        let mut asked = Instant::now();
        loop {
            self.mark();
            let process = self.cluster.node(number).process.as_mut().ok_or("it is down")?;
            if process.has_killed_itself() {
                break;
            }
            if began.elapsed() > POINT_WITHIN {
                self.kill(number).await;
                return Err(format!("node {number} did not come by within {POINT_WITHIN:?}"));
            }
            if leads && asked.elapsed() > Duration::from_millis(500) {
                // Refused until it is there, and idle once it leads.
                let _ = self.cluster.any().up().cli(&["cluster", "transfer", &number.to_string()]);
                asked = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.last(Duration::from_millis(700)).await;
        self.cluster.node(number).start().await;
        self.mark();
        Ok(())
    }
}
