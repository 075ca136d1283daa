//! `apply`: the one way in which the state changes. What each command does is beside: `jobs`, `launches`, `effects`.

use uuid::Uuid;

use super::{Applied, ApplyError, State};
use crate::{
    command::{Command, Entry, Output, Refusal, Reply},
    ids::Stamp,
    rows::{Cluster, Component, Node},
    table::Changes,
};

/// What the commands of one entry share.
pub(super) struct Context {
    pub(super) at: Stamp,
    pub(super) index: u64,
    pub(super) outputs: Vec<Output>,
    pub(super) changes: Changes,
}

pub(super) type Answer = Result<Reply, Refusal>;

impl State {
    /// Applies the entry at that index of the log. A refused command changes nothing; the others of its
    /// entry still apply.
    ///
    /// # Errors
    /// Only where going on would let nodes differ; the process must stop.
    pub fn apply(&mut self, index: u64, entry: &Entry) -> Result<Applied, ApplyError> {
        let changes = Changes { rows: Vec::new(), hash: self.hash };
        let mut cx = Context { at: Stamp(0), index, outputs: Vec::new(), changes };
        let mut replies = Vec::with_capacity(entry.commands.len());
        for stamped in &entry.commands {
            cx.at = stamped.at;
            let reply = self.dispatch(&mut cx, &stamped.command).unwrap_or_else(Reply::Refused);
            replies.push(reply);
            if let Some(cluster) = self.cluster.get(&()).filter(|c| c.time < stamped.at) {
                let cluster = Cluster { time: stamped.at, ..cluster.clone() };
                self.cluster.insert((), cluster);
            }
        }
        self.prune(&cx);
        self.cluster.drain(&mut cx.changes)?;
        self.components.drain(&mut cx.changes)?;
        self.nodes.drain(&mut cx.changes)?;
        self.jobs.drain(&mut cx.changes)?;
        self.graves.drain(&mut cx.changes)?;
        self.launches.drain(&mut cx.changes)?;
        self.ranges.drain(&mut cx.changes)?;
        self.folded.drain(&mut cx.changes)?;
        self.effects.drain(&mut cx.changes)?;
        self.kv.drain(&mut cx.changes)?;
        self.hash = cx.changes.hash;
        Ok(Applied { replies, outputs: cx.outputs, rows: cx.changes.rows })
    }

    pub(super) fn dispatch(&mut self, cx: &mut Context, command: &Command) -> Answer {
        match command {
            Command::Found { cluster, key_domain } => self.found(cx, *cluster, *key_domain),
            Command::RegisterNode { node, store, session, runs_max, memory_bytes_max, tz, version } => {
                let row = Node {
                    store: *store,
                    session: *session,
                    runs_max: *runs_max,
                    memory_bytes_max: *memory_bytes_max,
                    tz: tz.clone(),
                    version: version.clone(),
                    registered_at: cx.at,
                };
                self.nodes.insert(*node, row);
                Ok(Reply::Done)
            }
            Command::PutComponent { digest, size, imports } => {
                if self.components.get(digest).is_some() {
                    return Ok(Reply::Unchanged);
                }
                let row = Component { size: *size, imports: imports.clone(), stored_at: cx.at };
                self.components.insert(*digest, row);
                Ok(Reply::Done)
            }
            Command::PutJob { job, spec, from_revision, next, by } => {
                self.put_job(cx, job, spec, *from_revision, next.clone(), by)
            }
            Command::DeleteJob { job, from_revision, .. } => self.delete_job(cx, job, *from_revision),
            Command::Pause { job, note, by } => self.pause(cx, job, note, by),
            Command::Resume { job, revision, next } => self.resume(cx, job, *revision, next.clone()),
            Command::Retime { job, revision, awaited, next } => self.retime(job, *revision, *awaited, next.clone()),
            Command::Decide(decision) => self.decide(cx, decision),
            Command::Trigger { launch, local, same_key, by } => self.trigger(cx, launch, local, *same_key, by),
            Command::Intend { run, node, session } => self.intend(cx, run, *node, *session),
            Command::Start { run, grant } => self.start(cx, run, *grant),
            Command::End { run, grant, outcome, usage, results } => self.end(cx, run, *grant, outcome, *usage, results),
            Command::Enter { launch } => self.enter(cx, launch),
            Command::Expire { launch, clock } => self.expire(cx, launch, *clock),
            Command::IntendEffect { run, grant, key, what, fingerprint, results } => {
                self.intend_effect(cx, run, *grant, *key, what, *fingerprint, results)
            }
            Command::WriteKv { run, grant, key, name, change, results } => {
                self.write_kv(cx, run, *grant, *key, name, change, results)
            }
        }
    }

    pub(super) fn found(&mut self, cx: &Context, cluster: Uuid, key_domain: Uuid) -> Answer {
        if self.cluster().is_some() {
            return Err(Refusal::Founded);
        }
        self.cluster.insert((), Cluster { id: cluster, epoch: 1, key_domain, time: cx.at });
        Ok(Reply::Done)
    }
}
