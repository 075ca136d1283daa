//! Rights to use the API, and the audit log.

use super::{
    State,
    apply::{Answer, Context},
};
use crate::{
    access::{Access, Audited, Became, Role},
    command::{Command, IDENTITY, Refusal, Reply},
    table::Table,
};

/// What is kept of what was done. Arbitrary: a change a minute for two months, some ten megabytes.
const DONE_MAX: usize = 100_000;
/// What is kept of what was refused. Apart, so that nobody can push out what was done by asking for what is refused.
const REFUSED_MAX: usize = 10_000;
/// An expired right is kept this long, so that its holder is told what is the matter with it.
const EXPIRED_MS: u64 = 30 * 24 * 3_600 * 1_000;

/// The epoch, the entry of its log, and which of that entry's: in a restored cluster the log begins anew.
pub(super) type AuditKey = (u64, u64, u32);

// Reading.
impl State {
    /// The right that goes by that name, expired or not.
    pub fn access(&self, name: &str) -> Option<&Access> {
        self.access.get(&name.to_owned())
    }

    /// All rights, by name.
    pub fn accesses(&self) -> impl Iterator<Item = (&String, &Access)> {
        self.access.iter()
    }

    /// What was asked for and what became of it, the newest first.
    pub fn audit(&self) -> impl Iterator<Item = &Audited> {
        let mut done = self.done.iter().rev().peekable();
        let mut refused = self.refused.iter().rev().peekable();
        std::iter::from_fn(move || {
            let is_done_newer = match (done.peek(), refused.peek()) {
                (Some((key, _)), Some((other, _))) => key > other,
                (done, _) => done.is_some(),
            };
            if is_done_newer { done.next() } else { refused.next() }.map(|(_, audited)| audited)
        })
    }
}

impl State {
    pub(super) fn put_access(&mut self, cx: &Context, name: &str, access: &Access) -> Answer {
        if access.role == Role::Operator && access.namespace.is_some() {
            let why = "an operator's token is for the whole cluster; leave the namespace out, or give out a deployer's";
            return Err(Refusal::Meaningless(why.into()));
        }
        if access.expires_at <= cx.at {
            return Err(Refusal::Meaningless(format!(
                "the token would be good until {}, which is over",
                access.expires_at
            )));
        }
        let old = |access: &Access| access.expires_at.plus_ms(EXPIRED_MS) < cx.at;
        let gone: Vec<String> = self.access.iter().filter(|(_, row)| old(row)).map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.access.remove(&name);
        }
        let name = name.to_owned();
        if let Some(row) = self.access.get(&name) {
            // The answer to the first time was lost.
            if row.digest == access.digest {
                return Ok(Reply::Unchanged);
            }
            if row.expires_at > cx.at {
                return Err(Refusal::AccessExists(name));
            }
        }
        self.access.insert(name, access.clone());
        Ok(Reply::Done)
    }

    pub(super) fn drop_access(&mut self, name: &str) -> Answer {
        let was = self.access.remove(&name.to_owned());
        was.map(|_| Reply::Done).ok_or_else(|| Refusal::NoAccess(name.to_owned()))
    }

    pub(super) fn put_audit(&mut self, cx: &mut Context, records: &[Audited]) -> Answer {
        for record in records {
            self.write_audit(cx, record.clone());
        }
        Ok(Reply::Done)
    }

    /// What a command did that somebody asked for. What it refused is recorded where it was asked for: most of that
    /// never comes this far.
    pub(super) fn audit_command(&mut self, cx: &mut Context, command: &Command, reply: &Reply) {
        if self.level() < IDENTITY {
            return;
        }
        let became = match reply {
            Reply::Refused(_) => return,
            Reply::Unchanged => Became::Unchanged,
            _ => Became::Done,
        };
        if let Some((by, what, on)) = command.asked() {
            let (by, what) = (by.to_owned(), what.to_owned());
            self.write_audit(cx, Audited { at: cx.at, by, what, on, became, times: 1 });
        }
    }

    fn write_audit(&mut self, cx: &mut Context, record: Audited) {
        let epoch = self.cluster().map_or(0, |cluster| cluster.epoch);
        let key = (epoch, cx.index, cx.audited);
        cx.audited += 1;
        match record.became {
            Became::Refused(_) => keep(&mut self.refused, key, record, REFUSED_MAX),
            _ => keep(&mut self.done, key, record, DONE_MAX),
        }
    }
}

fn keep(table: &mut Table<AuditKey, Audited>, key: AuditKey, record: Audited, most: usize) {
    table.insert(key, record);
    while table.len() > most {
        let Some(oldest) = table.iter().next().map(|(key, _)| *key) else { return };
        table.remove(&oldest);
    }
}
