//! Running what was dispatched.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU32},
    time::Duration,
};

use futures::future::BoxFuture;
use tickhost_ledger::{
    Command, Digest, Grant, Reply, RunId, State,
    conductor::{Answer, Witness},
    effect::EffectResult,
    launch::Outcome,
    rows::Usage,
};
use tickhost_replica::{Clock, Replica, fault};
use tickhost_sandbox::{CodeError, Output, OutputText, RunReport, Runner};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use uuid::Uuid;

use crate::{
    journal::RunJournal,
    lease::Lease,
    order::{Dispatch, Floor, Obeyed, Order, SESSION_MS, What},
    table::{RunRow, RunStatus, Table},
};

/// A start is reported for as long as the session can hold, an end until somebody takes it.
const REPORT_WITHIN: Duration = Duration::from_millis(SESSION_MS.unsigned_abs());
/// A component that cannot be had is looked for so long before the run is given back: another executor may have it, and
/// one that nobody has is not handed round without a pause.
const LOOK_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The executor cannot use its table.
#[derive(Debug, thiserror::Error)]
#[error("{what} of the run table: {source}")]
pub struct ExecutorError {
    what: &'static str,
    source: std::io::Error,
}

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> ExecutorError {
    move |source| ExecutorError { what, source }
}

/// Sees to it that a component is on this node, from wherever it can be had. An error is a sentence.
pub type Fetch = Arc<dyn Fn(Digest) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// The executor of a node. Clones share it.
#[derive(Clone)]
pub struct Executor {
    table: Table,
    replica: Replica,
    sandbox: Arc<dyn Runner>,
    fetch: Fetch,
    clock: Clock,
    /// Guests run on threads of their own, apart from Raft's.
    guests: tokio::runtime::Handle,
    live: Arc<Mutex<BTreeMap<RunId, Live>>>,
    lease: Arc<Lease>,
    /// Orders are obeyed one after the other: what one of them refuses for ever, the next must not take on.
    floor: Arc<tokio::sync::Mutex<Floor>>,
    extended: Arc<Notify>,
}

/// How a run ended, what it used, and the results of effects that were not reported yet.
type RunEnd = (Outcome, Usage, Vec<(Uuid, EffectResult)>);

struct Live {
    output: Output,
    stop: Option<oneshot::Sender<String>>,
    /// It is stopped because its session has lapsed: the ledger calls it lost.
    lapsed: bool,
}

impl Executor {
    /// Opens the table beside the replica's log and settles what an earlier process left behind.
    ///
    /// # Errors
    /// A table that cannot be read.
    pub async fn open(
        replica: Replica,
        sandbox: Arc<dyn Runner>,
        fetch: Fetch,
        clock: Clock,
        guests: tokio::runtime::Handle,
    ) -> Result<Self, ExecutorError> {
        let table = Table::open(replica.db().clone()).map_err(failed("read the rows"))?;
        // What is said of earlier runs from here on is on the disk.
        table.sync().await;
        let floor = Arc::new(tokio::sync::Mutex::new(table.floor().map_err(failed("read the floor"))?));
        let executor = Self {
            table,
            replica,
            sandbox,
            fetch,
            clock,
            guests,
            live: Arc::default(),
            lease: Arc::default(),
            floor,
            extended: Arc::default(),
        };
        tokio::spawn(executor.clone().watch_lease());
        Ok(executor)
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<RunId, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who answers for this node's runs.
    pub fn witness(&self) -> Witness {
        Witness { node: self.replica.node(), store: self.table.store }
    }

    /// Runs at this moment.
    pub fn live_count(&self) -> usize {
        self.live().len()
    }

    /// The session with the leader, while it holds.
    pub fn session(&self) -> Option<Uuid> {
        self.lease.session(self.clock.since_boot_ms())
    }

    /// Counts the sessions that were asked for with this table, and the runs that it has accepted.
    pub fn sequence(&self) -> u64 {
        self.table.sequence()
    }

    /// The next number for a session that is asked for.
    ///
    /// # Errors
    /// A table that cannot be written.
    pub async fn next_sequence(&self) -> Result<u64, ExecutorError> {
        self.table.next_sequence().await.map_err(failed("count the sessions"))
    }

    /// A leader has granted a session in answer to a question that was asked at that moment, in milliseconds since
    /// boot. One from below the floor is not taken.
    ///
    /// # Errors
    /// A table that cannot be written.
    pub async fn hold(&self, leader: Floor, session: Uuid, asked_ms: i64) -> Result<bool, ExecutorError> {
        let mut floor = self.floor.lock().await;
        if !self.raise(&mut floor, leader).await? {
            return Ok(false);
        }
        if !self.lease.extend(session, asked_ms, self.clock.since_boot_ms()) {
            self.stop_all();
        }
        self.extended.notify_one();
        Ok(true)
    }

    /// False for a leader from below the floor. A higher one is on the disk before this returns.
    async fn raise(&self, floor: &mut Floor, leader: Floor) -> Result<bool, ExecutorError> {
        if leader > *floor {
            self.table.raise_floor(leader).await.map_err(failed("raise the floor"))?;
            *floor = leader;
        }
        Ok(leader == *floor || fault::planted("obey-anyone"))
    }

    /// Stops every guest when the session lapses: by then the leader may give their ticks to somebody else.
    async fn watch_lease(self) {
        loop {
            let now = self.clock.since_boot_ms();
            if self.lease.end(now) {
                tracing::warn!(
                    runs = self.live_count(),
                    "the session with the leader has lapsed: every run is stopped"
                );
                self.stop_all();
            }
            let left = self.lease.until_ms().map(|until| Duration::from_millis((until - now).max(1).unsigned_abs()));
            // A machine that was suspended wakes up with its timers behind: looked at often, they are not far off.
            let nap = left.map_or(Duration::from_secs(1), |left| left.min(Duration::from_millis(200)));
            tokio::select! {
                () = tokio::time::sleep(nap) => {}
                () = self.extended.notified() => {}
            }
        }
    }

    fn stop_all(&self) {
        if fault::planted("outlive-the-session") {
            return;
        }
        for live in self.live().values_mut() {
            live.lapsed = true;
            if let Some(stop) = live.stop.take() {
                let _ = stop.send("its session with the leader has lapsed".into());
            }
        }
    }

    /// Does what a leader asks, unless another one has been obeyed since, or the order is for a session that is over.
    ///
    /// # Errors
    /// A table that cannot be read or written.
    pub async fn obey(&self, order: Order) -> Result<Obeyed, ExecutorError> {
        let mut floor = self.floor.lock().await;
        if !self.raise(&mut floor, order.leader).await? {
            let (found, expected) = (order.leader, *floor);
            return Ok(Obeyed::Refused(format!(
                "the order is from term {} of epoch {}, and term {} of epoch {} has been obeyed",
                found.term, found.epoch, expected.term, expected.epoch
            )));
        }
        match order.what {
            What::Run(dispatches) => {
                let is_to_be_taken = self.lease.take(order.session, order.number, self.clock.since_boot_ms());
                if !is_to_be_taken && !fault::planted("obey-anyone") {
                    let found = self.session().map_or("no session".into(), |id| format!("session {id}"));
                    return Ok(Obeyed::Refused(format!(
                        "order {} of session {} is taken once, while that session holds; the executor has {found}",
                        order.number, order.session
                    )));
                }
                dispatches.into_iter().try_for_each(|dispatch| self.dispatch(dispatch))?;
                Ok(Obeyed::Done)
            }
            What::Tell(runs) => {
                let answers: Result<Vec<Answer>, ExecutorError> = runs.iter().map(|run| self.ask(run)).collect();
                let answers = answers?;
                // A row says that a run never was, until it is pruned; an order on its way may take longer.
                self.lease.refuse_before(order.session, order.number);
                // Every "never" among them is on the disk before it is said.
                if !fault::planted("never-unsynced") {
                    self.table.sync_now().await;
                }
                Ok(Obeyed::Told(answers))
            }
            What::Stop(runs) => {
                for (run, why) in runs {
                    self.stop(&run, why);
                }
                Ok(Obeyed::Done)
            }
        }
    }

    /// Takes a run on. A run whose row is there already is refused: it ran, runs, or never will.
    fn dispatch(&self, dispatch: Dispatch) -> Result<(), ExecutorError> {
        let run = dispatch.request.run.clone();
        let known = self.table.get(&run).map_err(failed("read a row"))?;
        if let Some(row) = known {
            tracing::warn!(%run, status = ?row.status, "refuse a run that is known already");
            return Ok(());
        }
        let row = RunRow { run: run.clone(), grant: Some(dispatch.grant), status: RunStatus::Accepted };
        let sequence = self.table.accept(&row).map_err(failed("write a row"))?;
        let output = Output::new(dispatch.request.limits.log_bytes);
        let (stop, stopped) = oneshot::channel();
        let live = Live { output: output.clone(), stop: Some(stop), lapsed: false };
        self.live().insert(run, live);
        let executor = self.clone();
        self.guests.spawn(async move { executor.carry_out(dispatch, row, sequence, output, stopped).await });
        Ok(())
    }

    async fn carry_out(
        self,
        dispatch: Dispatch,
        mut row: RunRow,
        sequence: u64,
        output: Output,
        stopped: oneshot::Receiver<String>,
    ) {
        let Dispatch { grant, request } = dispatch;
        let run = row.run.clone();
        let journal = Arc::new(RunJournal {
            replica: self.replica.clone(),
            table: self.table.clone(),
            lease: self.lease.clone(),
            clock: self.clock.clone(),
            run: run.clone(),
            grant,
            output: output.clone(),
            calls: AtomicU32::new(0),
            results: Mutex::default(),
        });
        match self.ready(&run, request.component).await {
            Err(outcome) => self.conclude(row, grant, RunReport { outcome, usage: Usage::default() }, &journal).await,
            // Compiling can take longer than a session, and so can a pause of the whole process.
            Ok(()) if !self.may_begin(&run) => {
                let evidence = "its session with the leader lapsed while the component was made ready".into();
                let report = RunReport { outcome: Outcome::NeverStarted { evidence }, usage: Usage::default() };
                self.conclude(row, grant, report, &journal).await;
            }
            Ok(()) => {
                row.status = RunStatus::Running;
                self.must(&run, self.table.put(&row));
                fault::point("run-accepted-unsynced");
                if !fault::planted("run-unsynced") {
                    self.table.sync().await;
                }
                fault::point("run-accepted");
                let stop = Box::pin(async { stopped.await.unwrap_or_else(|_| "the host is stopping".into()) });
                let start = async {
                    let start = Command::Start { run: run.clone(), grant, sequence };
                    if self.report(start, REPORT_WITHIN).await == Some(false) {
                        self.stop(&run, "another attempt has taken its place".into());
                    }
                    fault::point("start-committed");
                };
                let guest = async {
                    let report = self.sandbox.run(request, journal.clone(), output.clone(), stop).await;
                    self.conclude(row, grant, report, &journal).await;
                };
                // The start is on its way before the guest runs. It is committed meanwhile, or together with the end of a
                // short one.
                tokio::join!(start, guest);
            }
        }
    }

    /// Keeps the end of a run, reports it until the ledger has it, and forgets the run.
    async fn conclude(&self, mut row: RunRow, grant: Grant, report: RunReport, journal: &RunJournal) {
        let (outcome, usage, results) = self.finish(&mut row, report, journal);
        let run = row.run;
        fault::point("run-finished");
        if !self.leads() {
            // On the leader the commit of the end syncs the row too: one write-ahead log.
            self.table.sync().await;
        }
        let end = Command::End { run: run.clone(), grant, outcome, usage, results };
        while self.report(end.clone(), REPORT_WITHIN).await.is_none() {}
        fault::point("end-committed");
        self.must(&run, self.table.forget(&run));
        self.live().remove(&run);
    }

    /// Keeps the end of a run, unsynced: it survives the end of the process.
    fn finish(&self, row: &mut RunRow, report: RunReport, journal: &RunJournal) -> RunEnd {
        let RunReport { outcome, usage } = report;
        // An older node would pass over what it does not know, and its state would be another one.
        let is_known = self.replica.read(|state| state.below(Usage::FORMAT).next().is_none());
        let usage = if is_known { usage } else { usage.of_format_1() };
        let outcome = match outcome {
            Outcome::Revoked { message } if self.has_lapsed(&row.run) => Outcome::Lost { evidence: message },
            outcome => outcome,
        };
        let results = journal.take_results();
        row.status = RunStatus::Finished { outcome: outcome.clone(), usage, results: results.clone() };
        self.must(&row.run, self.table.put_output(&row.run, &journal.output.text()));
        self.must(&row.run, self.table.put(row));
        (outcome, usage, results)
    }

    /// Whether a run is stopped because its session has lapsed.
    fn has_lapsed(&self, run: &RunId) -> bool {
        self.live().get(run).is_some_and(|live| live.lapsed)
    }

    /// Whether a run is to stop, for whatever reason.
    fn is_told_to_stop(&self, run: &RunId) -> bool {
        self.live().get(run).is_none_or(|live| live.stop.is_none())
    }

    /// Whether a run that was taken may still begin.
    fn may_begin(&self, run: &RunId) -> bool {
        let is_over = self.has_lapsed(run) || self.session().is_none();
        !is_over || fault::planted("begin-when-lapsed") || fault::planted("obey-anyone")
    }

    fn leads(&self) -> bool {
        *self.replica.leader().borrow() == Some(self.replica.node())
    }

    /// Makes a component ready to run here. One that cannot be had is no fault of the job: its run never started. One
    /// that is refused is refused everywhere.
    async fn ready(&self, run: &RunId, component: Digest) -> Result<(), Outcome> {
        let until = Instant::now() + LOOK_WITHIN;
        loop {
            let evidence = match (self.fetch)(component).await {
                Err(why) => why,
                Ok(()) => match self.sandbox.prepare(component).await {
                    Ok(()) => return Ok(()),
                    Err(error @ CodeError::Compile { .. }) => {
                        return Err(Outcome::Trapped { message: error.to_string() });
                    }
                    Err(error) => error.to_string(),
                },
            };
            if Instant::now() >= until || self.is_told_to_stop(run) {
                return Err(Outcome::NeverStarted { evidence });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Whether the ledger took it, or has refused it for good; `None` where it cannot be asked.
    async fn report(&self, command: Command, within: Duration) -> Option<bool> {
        match self.replica.proposer().report(command, within).await {
            Ok(Reply::Refused(refusal)) => {
                tracing::info!(%refusal, "the ledger refused a report");
                Some(false)
            }
            Ok(_) => Some(true),
            Err(error) => {
                tracing::warn!(%error, "report to the ledger");
                None
            }
        }
    }

    /// A table that cannot be written must not carry on: what it would say later would be wrong.
    fn must(&self, run: &RunId, written: std::io::Result<()>) {
        if let Err(error) = written {
            tracing::error!(%run, %error, "write the run table: the process ends");
            fault::end_process();
        }
    }

    fn stop(&self, run: &RunId, why: String) {
        if let Some(stop) = self.live().get_mut(run).and_then(|live| live.stop.take()) {
            let _ = stop.send(why);
        }
    }

    /// What became of a run. A "never" is written, not synced.
    fn ask(&self, run: &RunId) -> Result<Answer, ExecutorError> {
        if self.live().contains_key(run) {
            return Ok(Answer::Running);
        }
        let row = self.table.get(run).map_err(failed("read a row"))?;
        Ok(match row.map(|row| row.status) {
            Some(RunStatus::Finished { outcome, usage, results }) => Answer::Finished { outcome, usage, results },
            Some(RunStatus::Running | RunStatus::Lost) => Answer::Lost,
            Some(RunStatus::Tombstone) => Answer::Never,
            None if fault::planted("no-tombstone") => Answer::Never,
            Some(RunStatus::Accepted) | None => {
                let row = RunRow { run: run.clone(), grant: None, status: RunStatus::Tombstone };
                self.table.put(&row).map_err(failed("write a row"))?;
                Answer::Never
            }
        })
    }

    /// What a run has written, so far or in all.
    ///
    /// # Errors
    /// A table that cannot be read.
    pub fn output(&self, run: &RunId) -> Result<Option<OutputText>, ExecutorError> {
        if let Some(live) = self.live().get(run) {
            return Ok(Some(live.output.text()));
        }
        self.table.output(run).map_err(|source| ExecutorError { what: "read an output", source })
    }

    /// Forgets the runs that the ledger does not count on any more, and the outputs that nobody can ask for. Returns how
    /// many of each.
    ///
    /// A tombstone may go once its "never" is in the ledger: the same attempt is not given out again.
    ///
    /// # Errors
    /// A sentence: a table that cannot be read or written, or a ledger that cannot be asked.
    pub async fn prune(&self) -> Result<(usize, usize), String> {
        // In this order: whatever has a row by now was intended before, and the state that is read afterwards knows it.
        let rows = self.table.rows().map_err(|e| e.to_string())?;
        let outputs = self.table.outputs().map_err(|e| e.to_string())?;
        self.replica.catch_up_for_certain().await.map_err(|e| e.to_string())?;
        let here: Vec<RunId> = self.live().keys().cloned().collect();
        let is_live = |state: &State, run: &RunId| {
            state.launch(&run.launch).is_some_and(|l| l.live().is_some() && l.attempt() == run.attempt)
        };
        let settled: Vec<&RunId> = self.replica.read(|state| {
            rows.iter().map(|row| &row.run).filter(|run| !here.contains(run) && !is_live(state, run)).collect()
        });
        let is_kept = |state: &State, run: &str| {
            let launch = run.rsplit_once('#').and_then(|(launch, _)| launch.parse().ok());
            launch.is_some_and(|id| state.launch(&id).is_some())
        };
        let forgotten: Vec<&String> =
            self.replica.read(|state| outputs.iter().filter(|run| !is_kept(state, run)).collect());
        for run in &settled {
            self.table.forget(run).map_err(|e| e.to_string())?;
        }
        for run in &forgotten {
            self.table.forget_output(run).map_err(|e| e.to_string())?;
        }
        Ok((settled.len(), forgotten.len()))
    }
}
