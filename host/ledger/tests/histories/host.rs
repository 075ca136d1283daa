//! A host without its shells: a state, a conductor, and a clock that tests set.

use super::*;

pub(crate) const COMPONENT: Digest = Digest([7; 32]);
pub(crate) const STORE: Uuid = Uuid::from_u128(1);

pub(crate) struct Host {
    pub(crate) state: State,
    pub(crate) conductor: Conductor,
    pub(crate) index: u64,
    pub(crate) now: i64,
    pub(crate) rows: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) sequence: u64,
    pub(crate) calls: u32,
}

pub(crate) fn spec() -> JobSpec {
    JobSpec {
        component: COMPONENT,
        timing: Definition::new("* * * * * *", "UTC"),
        calendars: vec![],
        max_launches: None,
        on_unknown: OnUnknown::Skip,
        overlap: Overlap::Skip,
        catch_up: CatchUp::Latest,
        start_deadline_s: 3_600,
        limits: Limits::default(),
        allow_http: vec![],
        config: BTreeMap::new(),
        args: Vec::new(),
        env: BTreeMap::new(),
        retry: Retry::NEVER,
    }
}

pub(crate) fn name() -> JobName {
    JobName::new("billing", "nightly").unwrap()
}

impl Host {
    pub(crate) fn new(spec: JobSpec) -> Self {
        let mut host = Self::empty(1_000_000_000);
        assert_eq!(host.put(spec), Reply::Done);
        host
    }

    /// A host without jobs, at that time.
    pub(crate) fn empty(now_ms: i64) -> Self {
        let mut host = Self {
            state: State::default(),
            conductor: Conductor::default(),
            sequence: 0,
            calls: 0,
            index: 0,
            now: now_ms,
            rows: BTreeMap::new(),
            outputs: vec![],
        };
        let present = BTreeMap::from([(1, BTreeSet::from([COMPONENT]).into())]);
        host.conductor.facts = std::sync::Arc::new(conductor::Facts { present, leader: 1 });
        let (cluster, key_domain) = (Uuid::from_u128(9), Uuid::from_u128(10));
        host.apply(Command::Found { cluster, key_domain, address: String::new() });
        host.register(2);
        host.apply(Command::PutComponent {
            digest: COMPONENT,
            size: 1,
            imports: vec![],
            namespace: None,
            by: String::new(),
        });
        host
    }

    pub(crate) fn register(&mut self, session: u128) {
        self.sequence += 1;
        let reply = self.apply(Command::OpenSession {
            node: 1,
            store: STORE,
            sequence: self.sequence,
            session: Uuid::from_u128(session),
            runs_max: 4,
            memory_bytes_max: 1 << 40,
            tz: "2026a".into(),
            version: "0.1.0".into(),
            format: tickhost_ledger::command::FORMAT,
        });
        assert_eq!(reply, Reply::Done);
    }

    pub(crate) fn put(&mut self, spec: JobSpec) -> Reply {
        self.put_as(&name(), spec)
    }

    pub(crate) fn put_as(&mut self, name: &JobName, spec: JobSpec) -> Reply {
        let put = self.put_command(name, spec);
        self.apply(put)
    }

    pub(crate) fn put_unchecked(&mut self, name: &JobName, spec: JobSpec) -> Reply {
        let put = self.put_command(name, spec);
        self.apply_unchecked(vec![put]).remove(0)
    }

    fn put_command(&self, name: &JobName, spec: JobSpec) -> Command {
        let at = Stamp(self.now);
        let schedule = Schedule::new(&spec.timing, Some(&name.to_string()), at.time()).unwrap();
        Command::PutJob {
            job: name.clone(),
            from_revision: self.state.job(name).map_or(0, |j| j.revision),
            next: conductor::next_tick(&schedule, at.time(), None),
            spec: Box::new(spec),
            checked: None,
            by: "someone".into(),
        }
    }

    pub(crate) fn apply(&mut self, command: Command) -> Reply {
        self.apply_all(vec![command]).remove(0)
    }

    /// Applies, and checks that the rows written so far give back the same state.
    pub(crate) fn apply_all(&mut self, commands: Vec<Command>) -> Vec<Reply> {
        let entry = commands.clone();
        let replies = self.apply_unchecked(commands);
        let loaded = State::load(self.rows.iter().map(|(k, v)| (k.as_slice(), v.as_slice()))).unwrap();
        assert_eq!(loaded.hash(), self.state.hash(), "after {entry:?}");
        let mut contents = Contents::default();
        self.rows.iter().for_each(|(key, value)| contents.add(key, value).unwrap());
        assert_eq!(contents.hash, self.state.hash());
        assert_eq!((contents.cluster.as_ref(), contents.jobs as usize), (self.state.cluster(), self.state.job_count()));
        assert_eq!(loaded.reserved(1), self.state.reserved(1), "after {entry:?}");
        assert!(loaded.due().eq(self.state.due()), "after {entry:?}");
        let waiting = |state: &State| -> Vec<LaunchId> {
            state.waiting(Stamp(i64::MAX)).flat_map(|(_, launches)| launches.cloned()).collect()
        };
        assert_eq!(waiting(&loaded), waiting(&self.state), "after {entry:?}");
        assert!(loaded.all_held().eq(self.state.all_held()), "after {entry:?}");
        replies
    }

    /// Without the check, which takes longer with every row.
    pub(crate) fn apply_unchecked(&mut self, commands: Vec<Command>) -> Vec<Reply> {
        self.index += 1;
        let at = Stamp(self.now);
        let entry = Entry { commands: commands.into_iter().map(|command| Stamped { at, command }).collect() };
        let applied = self.state.apply(self.index, &entry).unwrap();
        for row in applied.rows {
            match row.value {
                Some(value) => self.rows.insert(row.key, value),
                None => self.rows.remove(&row.key),
            };
        }
        self.outputs.extend(applied.outputs);
        applied.replies
    }

    pub(crate) fn advance_to(&mut self, now_s: i64) -> Vec<RunId> {
        self.now = 1_000_000_000 + now_s * 1_000;
        self.plan()
    }

    pub(crate) fn plan(&mut self) -> Vec<RunId> {
        let plan = self.conductor.plan(&self.state, Stamp(self.now));
        assert!(plan.faults.is_empty());
        if plan.commands.is_empty() {
            return vec![];
        }
        self.outputs.clear();
        // As the leader does: it plans again at once after what it proposed.
        let again = plan.commands.iter().any(|command| matches!(command, Command::Enter { .. }));
        self.apply_all(plan.commands);
        let dispatched = |o: &Output| if let Output::Dispatch(run) = o { Some(run.clone()) } else { None };
        let mut runs: Vec<RunId> = self.outputs.iter().filter_map(dispatched).collect();
        if again {
            runs.extend(self.plan());
        }
        runs
    }

    pub(crate) fn grant(&self, run: &RunId) -> Grant {
        self.state.launch(&run.launch).unwrap().attempts.last().unwrap().grant
    }

    pub(crate) fn start(&mut self, run: &RunId) -> Reply {
        let grant = self.grant(run);
        self.apply(Command::Start { run: run.clone(), grant, sequence: 0 })
    }

    pub(crate) fn end(&mut self, run: &RunId, outcome: Outcome) -> Reply {
        let grant = self.grant(run);
        self.apply(Command::End { run: run.clone(), grant, outcome, usage: Usage::default(), results: vec![] })
    }

    pub(crate) fn succeed(&mut self, run: &RunId) {
        self.start(run);
        assert_eq!(self.end(run, Outcome::Succeeded { message: None }), Reply::Done);
    }

    pub(crate) fn effect(&mut self, run: &RunId, payload: u8, results: Vec<(Uuid, EffectResult)>) -> Reply {
        let (grant, key) = (self.grant(run), self.key(run));
        let fingerprint = Digest([payload; 32]);
        let what = "POST".into();
        self.calls += 1;
        let call = self.calls;
        self.apply(Command::IntendEffect { run: run.clone(), grant, call, key, what, fingerprint, results })
    }

    pub(crate) fn key(&self, run: &RunId) -> Uuid {
        self.state.key_source(&run.launch).unwrap().key(&["charge".into()])
    }

    pub(crate) fn status(&self, launch: &LaunchId) -> Status {
        self.state.launch(launch).unwrap().status.clone()
    }

    /// The verdict of a second since the start, or what there is instead.
    pub(crate) fn verdict(&self, second: i64) -> String {
        let tick = TickAt(1_000_000 + second);
        let launch = LaunchId { job: name(), tick, rerun: None };
        let launched = self.state.launch(&launch).map(|l| match &l.status {
            Status::Closed(verdict) => verdict.to_string(),
            open => format!("{open:?}"),
        });
        let covers = |(from, range): (TickAt, &tickhost_ledger::rows::SkippedRange)| {
            (from <= tick && range.to.is_none_or(|to| tick <= to)).then(|| range.reason.verdict().to_string())
        };
        let found: Vec<String> = launched.into_iter().chain(self.state.skipped(&name()).filter_map(covers)).collect();
        found.join(" and ")
    }

    pub(crate) fn verdicts(&self, seconds: std::ops::RangeInclusive<i64>) -> Vec<String> {
        seconds.map(|s| self.verdict(s)).collect()
    }
}
