//! Running what was dispatched.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tickhost_ledger::{
    Command, Grant, Reply, RunId,
    conductor::{Answer, Witness},
    launch::Outcome,
    rows::Usage,
};
use tickhost_replica::{Replica, fault};
use tickhost_sandbox::{Output, OutputText, RunReport, RunRequest, Sandbox};
use tokio::sync::oneshot;

use crate::{
    journal::RunJournal,
    now,
    table::{RunRow, RunStatus, Table},
};

/// The executor cannot use its table.
#[derive(Debug, thiserror::Error)]
#[error("{what} of the run table: {source}")]
pub struct ExecutorError {
    what: &'static str,
    source: std::io::Error,
}

/// A run to carry out, with all it needs: the executor looks nothing up.
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// Its right to act.
    pub grant: Grant,
    /// What to run.
    pub request: RunRequest,
}

/// The executor of a node. Clones share it.
#[derive(Clone)]
pub struct Executor {
    table: Table,
    replica: Replica,
    sandbox: Arc<Sandbox>,
    /// Guests run on threads of their own, apart from Raft's.
    guests: tokio::runtime::Handle,
    live: Arc<Mutex<BTreeMap<RunId, Live>>>,
}

struct Live {
    output: Output,
    stop: Option<oneshot::Sender<String>>,
}

impl Executor {
    /// Opens the table beside the replica's log and settles what an earlier process left behind.
    ///
    /// # Errors
    /// A table that cannot be read.
    pub async fn open(
        replica: Replica,
        sandbox: Arc<Sandbox>,
        guests: tokio::runtime::Handle,
    ) -> Result<Self, ExecutorError> {
        let table =
            Table::open(replica.db().clone()).map_err(|source| ExecutorError { what: "read the rows", source })?;
        // What is said of earlier runs from here on is on the disk.
        table.sync().await;
        Ok(Self { table, replica, sandbox, guests, live: Arc::default() })
    }

    /// Who answers for this node's runs.
    pub fn witness(&self) -> Witness {
        Witness { node: self.replica.node(), store: self.table.store }
    }

    /// Runs at this moment.
    pub fn live_count(&self) -> usize {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Takes a run on. A run whose row is there already is refused: it ran, runs, or never will.
    ///
    /// # Errors
    /// A table that cannot be read or written.
    pub fn dispatch(&self, dispatch: Dispatch) -> Result<(), ExecutorError> {
        let run = dispatch.request.run.clone();
        let known = self.table.get(&run).map_err(|source| ExecutorError { what: "read a row", source })?;
        if let Some(row) = known {
            tracing::warn!(%run, status = ?row.status, "refuse a run that is known already");
            return Ok(());
        }
        let row = RunRow { run: run.clone(), grant: Some(dispatch.grant), status: RunStatus::Accepted };
        self.table.put(&row).map_err(|source| ExecutorError { what: "write a row", source })?;
        let output = Output::new(dispatch.request.limits.log_bytes);
        let (stop, stopped) = oneshot::channel();
        let live = Live { output: output.clone(), stop: Some(stop) };
        self.live.lock().unwrap_or_else(PoisonError::into_inner).insert(run, live);
        let executor = self.clone();
        self.guests.spawn(async move { executor.carry_out(dispatch, row, output, stopped).await });
        Ok(())
    }

    async fn carry_out(self, dispatch: Dispatch, mut row: RunRow, output: Output, stopped: oneshot::Receiver<String>) {
        let Dispatch { grant, request } = dispatch;
        let run = row.run.clone();
        let journal = Arc::new(RunJournal {
            replica: self.replica.clone(),
            table: self.table.clone(),
            run: run.clone(),
            grant,
            output: output.clone(),
            results: Mutex::default(),
        });
        let report = match self.sandbox.prepare(request.component).await {
            Err(error) => {
                RunReport { outcome: Outcome::Trapped { message: error.to_string() }, usage: Usage::default() }
            }
            Ok(()) => {
                row.status = RunStatus::Running;
                self.must(&run, self.table.put(&row));
                fault::point("run-accepted-unsynced");
                self.table.sync().await;
                fault::point("run-accepted");
                let stop = async { stopped.await.unwrap_or_else(|_| "the host is stopping".into()) };
                let start = self.propose(Command::Start { run: run.clone(), grant });
                let guest = self.sandbox.run(request, journal.clone(), output.clone(), stop);
                // The start is committed while the guest runs.
                let (report, ()) = tokio::join!(guest, async {
                    start.await;
                    fault::point("start-committed");
                });
                report
            }
        };
        let RunReport { outcome, usage } = report;
        let results = journal.take_results();
        row.status = RunStatus::Finished { outcome: outcome.clone(), usage, results: results.clone() };
        self.must(&run, self.table.put_output(&run, &output.text()));
        self.must(&run, self.table.put(&row));
        fault::point("run-finished");
        // The commit of the end syncs the row too: one write-ahead log.
        let known = self.propose(Command::End { run: run.clone(), grant, outcome, usage, results }).await;
        fault::point("end-committed");
        if known {
            self.must(&run, self.table.forget(&run));
        }
        self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&run);
    }

    /// True once the ledger has it, or has refused it for good.
    async fn propose(&self, command: Command) -> bool {
        match self.replica.propose_one(now(), command).await {
            Ok(Reply::Refused(refusal)) => {
                tracing::info!(%refusal, "the ledger refused a report");
                true
            }
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, "report to the ledger");
                false
            }
        }
    }

    /// A table that cannot be written must not carry on: what it would say later would be wrong.
    fn must(&self, run: &RunId, written: std::io::Result<()>) {
        if let Err(error) = written {
            tracing::error!(%run, %error, "write the run table: the process ends");
            std::process::abort();
        }
    }

    /// Stops a run, with the reason.
    pub fn stop(&self, run: &RunId, why: String) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stop) = live.get_mut(run).and_then(|live| live.stop.take()) {
            let _ = stop.send(why);
        }
    }

    /// What became of a run. A "never" is on the disk before it is said.
    ///
    /// # Errors
    /// A table that cannot be read or written.
    pub async fn ask(&self, run: &RunId) -> Result<Answer, ExecutorError> {
        if self.live.lock().unwrap_or_else(PoisonError::into_inner).contains_key(run) {
            return Ok(Answer::Running);
        }
        let row = self.table.get(run).map_err(|source| ExecutorError { what: "read a row", source })?;
        Ok(match row.map(|row| row.status) {
            Some(RunStatus::Finished { outcome, usage, results }) => Answer::Finished { outcome, usage, results },
            Some(RunStatus::Running | RunStatus::Lost) => Answer::Lost,
            Some(RunStatus::Tombstone) => Answer::Never,
            Some(RunStatus::Accepted) | None => {
                let row = RunRow { run: run.clone(), grant: None, status: RunStatus::Tombstone };
                self.table.put(&row).map_err(|source| ExecutorError { what: "write a row", source })?;
                self.table.sync().await;
                Answer::Never
            }
        })
    }

    /// What a run has written, so far or in all.
    ///
    /// # Errors
    /// A table that cannot be read.
    pub fn output(&self, run: &RunId) -> Result<Option<OutputText>, ExecutorError> {
        if let Some(live) = self.live.lock().unwrap_or_else(PoisonError::into_inner).get(run) {
            return Ok(Some(live.output.text()));
        }
        self.table.output(run).map_err(|source| ExecutorError { what: "read an output", source })
    }

    /// Forgets the runs that the ledger does not count on (`is_live` says which it does), and the outputs that
    /// nobody can ask for any more (`is_kept`). Returns how many of each.
    ///
    /// A tombstone may go once its "never" is in the ledger: the same attempt is not given out again.
    ///
    /// # Errors
    /// A table that cannot be read or written.
    pub fn prune(
        &self,
        is_live: impl Fn(&RunId) -> bool,
        is_kept: impl Fn(&str) -> bool,
    ) -> Result<(usize, usize), ExecutorError> {
        let here: Vec<RunId> = self.live.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect();
        let failed = |source| ExecutorError { what: "prune the rows", source };
        let runs = self.table.prune(|run| here.contains(run) || is_live(run)).map_err(failed)?;
        Ok((runs, self.table.prune_outputs(is_kept).map_err(failed)?))
    }
}
