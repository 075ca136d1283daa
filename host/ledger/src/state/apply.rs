//! `apply`: the one way in which the state changes. What each command does is beside: `nodes`, `restore`,
//! `namespaces`, `access`, `jobs`, `rewind`, `launches`, `effects`.

use super::{Applied, ApplyError, State};
use crate::{
    command::{Command, Entry, Output, Refusal, Reply},
    ids::Stamp,
    rows::{Cluster, Executor},
    table::Changes,
};

/// What the commands of one entry share.
pub(super) struct Context {
    pub(super) at: Stamp,
    pub(super) index: u64,
    pub(super) outputs: Vec<Output>,
    pub(super) changes: Changes,
    /// Records of the audit log that the entry has led to so far.
    pub(super) audited: u32,
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
        let mut cx = Context { at: Stamp(0), index, outputs: Vec::new(), changes, audited: 0 };
        let mut replies = Vec::with_capacity(entry.commands.len());
        for stamped in &entry.commands {
            cx.at = stamped.at;
            let reply = self.dispatch(&mut cx, &stamped.command).unwrap_or_else(Reply::Refused);
            self.audit_command(&mut cx, &stamped.command, &reply);
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
        self.tokens.drain(&mut cx.changes)?;
        self.jobs.drain(&mut cx.changes)?;
        self.graves.drain(&mut cx.changes)?;
        self.launches.drain(&mut cx.changes)?;
        self.ranges.drain(&mut cx.changes)?;
        self.folded.drain(&mut cx.changes)?;
        self.effects.drain(&mut cx.changes)?;
        self.kv.drain(&mut cx.changes)?;
        self.namespaces.drain(&mut cx.changes)?;
        self.spent.drain(&mut cx.changes)?;
        self.access.drain(&mut cx.changes)?;
        self.done.drain(&mut cx.changes)?;
        self.refused.drain(&mut cx.changes)?;
        self.hash = cx.changes.hash;
        Ok(Applied { replies, outputs: cx.outputs, rows: cx.changes.rows })
    }

    pub(super) fn dispatch(&mut self, cx: &mut Context, command: &Command) -> Answer {
        if let Some(held) = self.hold().filter(|_| command.is_about_jobs()) {
            return Err(Refusal::OnHold(held.backup.clone()));
        }
        match command {
            Command::Found { cluster, key_domain, address } => self.found(cx, *cluster, *key_domain, address),
            Command::PutToken { digest, expires_at, voter, by } => self.put_token(cx, *digest, *expires_at, *voter, by),
            Command::Admit { token, address, voter } => self.admit(cx, token, address, *voter),
            Command::Move { node, address } => self.move_node(*node, address),
            Command::Drain { node, draining, .. } => self.drain_node(*node, *draining),
            Command::Remove { node, .. } => self.remove_node(*node),
            Command::Restore { cluster, node, address, backup, taken_at } => {
                self.restore(cx, *cluster, *node, address, backup, *taken_at)
            }
            Command::Destroyed { node, .. } => self.destroyed(*node),
            Command::Release { choice, by } => self.release(cx, *choice, by),
            Command::OpenSession {
                node,
                store,
                sequence,
                session,
                runs_max,
                memory_bytes_max,
                tz,
                version,
                format,
            } => self.open_session(
                *node,
                Executor {
                    store: *store,
                    sequence: *sequence,
                    session: Some(*session),
                    runs_max: *runs_max,
                    memory_bytes_max: *memory_bytes_max,
                    tz: tz.clone(),
                    version: version.clone(),
                    format: *format,
                    opened_at: cx.at,
                },
            ),
            Command::Lapse { node, session, evidence } => self.lapse(cx, *node, *session, evidence),
            Command::PutComponent { digest, size, imports, namespace, .. } => {
                self.put_component(cx, *digest, *size, imports, namespace.as_deref())
            }
            Command::DropComponent { digest, namespace, .. } => self.drop_component(digest, namespace.as_deref()),
            Command::Level { format } => self.raise_level(*format),
            Command::SetQuota { namespace, quota, by } => self.set_quota(cx, namespace, quota.as_deref(), by),
            Command::PutAccess { name, access } => self.put_access(cx, name, access),
            Command::DropAccess { name, .. } => self.drop_access(name),
            Command::Audit { records } => self.put_audit(cx, records),
            Command::PutJob { job, spec, from_revision, next, checked, by } => {
                self.put_job(cx, job, spec, *from_revision, next.clone(), checked.as_ref(), by)
            }
            Command::DeleteJob { job, from_revision, .. } => self.delete_job(cx, job, *from_revision),
            Command::Pause { job, note, by } => self.pause(cx, job, note, by),
            Command::Resume { job, revision, next, .. } => self.resume(cx, job, *revision, next.clone()),
            Command::Retime { job, revision, awaited, next } => self.retime(job, *revision, *awaited, next.clone()),
            Command::Rewind { job, revision, awaited, next } => self.rewind(cx, job, *revision, *awaited, next.clone()),
            Command::Hasten { launch } => self.hasten(cx, launch),
            Command::Rewound => self.rewound(cx),
            Command::Named { by } => self.named(by),
            Command::Decide(decision) => self.decide(cx, decision),
            Command::Trigger { launch, local, same_key, by } => self.trigger(cx, launch, local, *same_key, by),
            Command::Intend { run, node, session } => self.intend(cx, run, *node, *session),
            Command::Start { run, grant, sequence } => self.start(cx, run, *grant, *sequence),
            Command::End { run, grant, outcome, usage, results } => self.end(cx, run, *grant, outcome, *usage, results),
            Command::Enter { launch } => self.enter(cx, launch),
            Command::Expire { launch, clock } => self.expire(cx, launch, *clock),
            Command::IntendEffect { run, grant, call, key, what, fingerprint, results } => {
                self.intend_effect(cx, run, *grant, *call, *key, what, *fingerprint, results)
            }
            Command::WriteKv { run, grant, key, name, change, results } => {
                self.write_kv(cx, run, *grant, *key, name, change, results)
            }
        }
    }
}
