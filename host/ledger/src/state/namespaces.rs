//! What namespaces may have: their quotas, their components, what they have spent.

use std::collections::BTreeSet;

use super::{
    State,
    apply::{Answer, Context},
};
use crate::{
    command::{NAMESPACES, Refusal, Reply},
    effect::{Effect, EffectId},
    ids::{Digest, JobName, Stamp},
    launch::Outcome,
    quota::{Block, Checked, EVERY_NAMESPACE, Held, Quota, Spent},
    rows::{Attempt, Component, Executor, KvValue, Namespace, Usage},
    spec::{JobSpec, Limits},
};

// Reading.
impl State {
    /// What the ledger does by itself goes by commands up to this level.
    pub fn level(&self) -> u32 {
        self.cluster().map_or(1, |cluster| cluster.level)
    }

    /// The quota that a namespace goes by: its own, or that of every namespace.
    pub fn quota(&self, namespace: &str) -> Option<&Namespace> {
        self.namespaces.get(&namespace.to_owned()).or_else(|| self.namespaces.get(&EVERY_NAMESPACE.to_owned()))
    }

    /// Namespaces with a quota of their own, [`EVERY_NAMESPACE`] among them.
    pub fn quotas(&self) -> impl Iterator<Item = (&String, &Namespace)> {
        self.namespaces.iter()
    }

    /// What a namespace has at this moment.
    pub fn held(&self, namespace: &str) -> Held {
        self.index.held.get(namespace).copied().unwrap_or_default()
    }

    /// Namespaces that have something at this moment, with what they have.
    pub fn all_held(&self) -> impl Iterator<Item = (&String, &Held)> {
        self.index.held.iter()
    }

    /// What a namespace has spent, as far as its quota asks.
    pub fn spent(&self, namespace: &str) -> Spent {
        self.spent.get(&namespace.to_owned()).copied().unwrap_or_default()
    }

    /// Why a run with these limits would have to wait for its namespace at that instant, if it would. `more` is what is
    /// about to be given out beside what the ledger knows.
    pub fn block(&self, namespace: &str, limits: &Limits, at: Stamp, more: &Held) -> Option<Block> {
        let row = self.quota(namespace)?;
        let held = self.held(namespace);
        let held = Held {
            runs: held.runs + more.runs,
            memory_bytes: held.memory_bytes.saturating_add(more.memory_bytes),
            cpu_ms: held.cpu_ms.saturating_add(more.cpu_ms),
            ..held
        };
        let spent = self.spent(namespace).at(at);
        let spent = Spent { launches: spent.launches + more.runs, ..spent };
        row.quota.blocks(limits, &held, spent, at)
    }
}

impl State {
    pub(super) fn raise_level(&mut self, format: u32) -> Answer {
        if let Some((node, _)) = self.below(format).next() {
            let why = format!("it does not know commands of level {format}");
            return Err(Refusal::Executor { node, why });
        }
        match self.cluster.get_mut(&()).filter(|cluster| cluster.level < format) {
            Some(cluster) => cluster.level = format,
            None => return Ok(Reply::Unchanged),
        }
        Ok(Reply::Done)
    }

    pub(super) fn set_quota(&mut self, cx: &Context, namespace: &str, quota: Option<&Quota>, by: &str) -> Answer {
        let key = namespace.to_owned();
        let Some(quota) = quota else {
            let was = self.namespaces.remove(&key);
            return Ok(if was.is_some() { Reply::Done } else { Reply::Unchanged });
        };
        if let problems @ [_, ..] = quota.problems().as_slice() {
            return Err(Refusal::Meaningless(problems.join("; ")));
        }
        if self.namespaces.get(&key).is_some_and(|row| row.quota == *quota) {
            return Ok(Reply::Unchanged);
        }
        let row = Namespace { quota: quota.clone(), revision: cx.index, stored_at: cx.at, by: by.to_owned() };
        self.namespaces.insert(key, row);
        Ok(Reply::Done)
    }

    pub(super) fn put_component(
        &mut self,
        cx: &Context,
        digest: Digest,
        size: u64,
        imports: &[String],
        namespace: Option<&str>,
    ) -> Answer {
        let stored = self.components.get(&digest);
        let is_for = |row: &Component| namespace.map_or(row.namespaces.is_none(), |namespace| row.is_for(namespace));
        if stored.is_some_and(is_for) {
            return Ok(Reply::Unchanged);
        }
        let size = stored.map_or(size, |row| row.size);
        if let Some(namespace) = namespace
            && let Some(most) = self.quota(namespace).and_then(|row| row.quota.component_bytes)
        {
            let with = self.held(namespace).component_bytes.saturating_add(size);
            if with > most {
                let found = format!("`components` would be {with} bytes, the namespace's quota is {most} bytes");
                return Err(Refusal::OverQuota { what: format!("component {digest}"), violations: vec![found] });
            }
        }
        let was = stored.cloned();
        let namespaces = match (was.as_ref().and_then(|row| row.namespaces.clone()), namespace) {
            (_, None) => None,
            (was, Some(namespace)) => Some(was.into_iter().flatten().chain([namespace.to_owned()]).collect()),
        };
        let row = match was {
            Some(row) => Component { namespaces, ..row },
            None => Component { size, imports: imports.to_vec(), stored_at: cx.at, namespaces },
        };
        self.set_component(digest, Some(row));
        Ok(Reply::Done)
    }

    pub(super) fn drop_component(&mut self, digest: &Digest, namespace: Option<&str>) -> Answer {
        let row = self.components.get(digest).cloned().ok_or(Refusal::NoComponent(*digest))?;
        let is_theirs = match (&row.namespaces, namespace) {
            (None, None) => true,
            (Some(namespaces), Some(namespace)) => namespaces.contains(namespace),
            _ => false,
        };
        if !is_theirs {
            return Err(Refusal::NoComponent(*digest));
        }
        let names_it = |(name, job): &(&JobName, &crate::rows::Job)| {
            job.spec.component == *digest && namespace.is_none_or(|namespace| name.namespace == namespace)
        };
        if let Some((job, _)) = self.jobs.iter().find(names_it) {
            return Err(Refusal::InUse { digest: *digest, job: job.clone() });
        }
        let left: BTreeSet<String> =
            row.namespaces.iter().flatten().filter(|name| Some(name.as_str()) != namespace).cloned().collect();
        let row = (!left.is_empty()).then_some(Component { namespaces: Some(left), ..row });
        self.set_component(*digest, row);
        Ok(Reply::Done)
    }

    fn set_component(&mut self, digest: Digest, row: Option<Component>) {
        if let Some(row) = self.components.get(&digest) {
            for namespace in row.namespaces.iter().flatten() {
                self.index.hold(namespace, |held| held.component_bytes -= row.size);
            }
        }
        match row {
            None => {
                self.components.remove(&digest);
            }
            Some(row) => {
                for namespace in row.namespaces.iter().flatten() {
                    self.index.hold(namespace, |held| held.component_bytes += row.size);
                }
                self.components.insert(digest, row);
            }
        }
    }

    /// Everything that keeps a job from being stored, of its namespace and of the cluster.
    pub(super) fn admit_job(
        &self,
        name: &JobName,
        spec: &JobSpec,
        is_new: bool,
        checked: Option<&Checked>,
    ) -> Result<(), Refusal> {
        let mut violations = Vec::new();
        if let Some(row) = self.quota(&name.namespace) {
            let read = checked.map(|checked| checked.quota);
            if row.quota.asks_for_a_check() && read != Some(row.revision) {
                return Err(Refusal::Stale {
                    what: format!("quota of {}", name.namespace),
                    found: format!("revision {}", row.revision),
                    expected: read.map_or("none".into(), |revision| format!("revision {revision}")),
                });
            }
            // A job that is there already may be changed, whatever became of the quota since.
            let jobs = if is_new { self.held(&name.namespace).jobs + 1 } else { 0 };
            violations.extend(row.quota.refuses(spec, jobs, checked));
        }
        // Older nodes would have taken it.
        if self.level() >= NAMESPACES {
            let memory = |executor: &Executor| executor.memory_bytes_max;
            let most = self.nodes().filter_map(|(_, node)| node.executor.as_ref().map(memory)).max();
            let needs = spec.limits.memory_bytes;
            if let Some(most) = most.filter(|most| needs > *most) {
                violations.push(format!(
                    "`limits.memory` is {needs} bytes, the largest node of the cluster has {most} bytes for all of its runs"
                ));
            }
        }
        if violations.is_empty() {
            return Ok(());
        }
        Err(Refusal::OverQuota { what: format!("job {name}"), violations })
    }

    /// Counts an attempt that is given out, where the namespace's quota asks. Returns the CPU time to reserve for it.
    pub(super) fn spend_launch(&mut self, namespace: &str, limits: &Limits, at: Stamp) -> u64 {
        let Some(row) = self.quota(namespace) else { return 0 };
        let (counts, reserves) = (row.quota.launches_per_minute.is_some(), row.quota.cpu_s_per_hour.is_some());
        if counts {
            let spent = self.spent(namespace).at(at);
            self.spent.insert(namespace.to_owned(), Spent { launches: spent.launches + 1, ..spent });
        }
        if reserves { limits.cpu_ms } else { 0 }
    }

    /// Counts what an attempt has used, where the namespace's quota asks. Of one that was lost nobody knows it: what was
    /// reserved counts.
    pub(super) fn spend_cpu(&mut self, namespace: &str, attempt: &Attempt, outcome: &Outcome, usage: Usage, at: Stamp) {
        if self.quota(namespace).is_none_or(|row| row.quota.cpu_s_per_hour.is_none()) {
            return;
        }
        let used_us = match outcome {
            Outcome::NeverStarted { .. } => return,
            Outcome::Lost { .. } | Outcome::Unanswered { .. } => attempt.cpu_ms.saturating_mul(1_000),
            _ => usage.cpu_us,
        };
        let spent = self.spent(namespace).at(at);
        let cpu_us = spent.cpu_us.saturating_add(used_us);
        self.spent.insert(namespace.to_owned(), Spent { cpu_us, ..spent });
    }

    /// A clock that was ahead counted in hours that are still to come.
    pub(super) fn forget_spent(&mut self) {
        let all: Vec<String> = self.spent.iter().map(|(namespace, _)| namespace.clone()).collect();
        for namespace in all {
            self.spent.remove(&namespace);
        }
    }

    pub(super) fn set_effect(&mut self, id: EffectId, effect: Option<Effect>) {
        let was = self.effects.get(&id).map_or(0, Effect::bytes);
        let is = effect.as_ref().map_or(0, Effect::bytes);
        self.index.hold(&id.job.namespace, |held| held.journal_bytes = held.journal_bytes - was + is);
        match effect {
            Some(effect) => self.effects.insert(id, effect),
            None => {
                self.effects.remove(&id);
            }
        }
    }

    pub(super) fn set_kv(&mut self, row: (String, String), value: Option<KvValue>) {
        let was = self.kv.get(&row).map_or(0, |value| kv_bytes(&row.1, value));
        let is = value.as_ref().map_or(0, |value| kv_bytes(&row.1, value));
        self.index.hold(&row.0, |held| held.kv_bytes = held.kv_bytes - was + is);
        match value {
            Some(value) => self.kv.insert(row, value),
            None => {
                self.kv.remove(&row);
            }
        }
    }

    /// Why the key-value store of a namespace has no room for that value, if so. What makes it smaller always fits.
    pub(super) fn kv_is_full(&self, row: &(String, String), value: &KvValue) -> Option<String> {
        let most = self.quota(&row.0)?.quota.kv_bytes?;
        let was = self.kv.get(row).map_or(0, |value| kv_bytes(&row.1, value));
        let (held, is) = (self.held(&row.0).kv_bytes, kv_bytes(&row.1, value));
        let with = held - was + is;
        (is > was && with > most).then(|| {
            format!("the key-value store of `{}` would hold {with} bytes, its quota is {most}; remove some", row.0)
        })
    }

    /// Why the journal of a namespace has no room for more, if so.
    pub(super) fn journal_is_full(&self, namespace: &str) -> Option<String> {
        let most = self.quota(namespace)?.quota.journal_bytes?;
        let held = self.held(namespace).journal_bytes;
        (held >= most).then(|| {
            format!(
                "the effect journal of `{namespace}` holds {held} bytes, its quota is {most}; it shrinks with the \
                 launches that are no longer kept"
            )
        })
    }

    pub(super) fn rebuild_held(&mut self) {
        for (name, _) in self.jobs.iter() {
            self.index.hold(&name.namespace, |held| held.jobs += 1);
        }
        for (_, row) in self.components.iter() {
            for namespace in row.namespaces.iter().flatten() {
                self.index.hold(namespace, |held| held.component_bytes += row.size);
            }
        }
        for (row, value) in self.kv.iter() {
            self.index.hold(&row.0, |held| held.kv_bytes += kv_bytes(&row.1, value));
        }
        for (id, effect) in self.effects.iter() {
            self.index.hold(&id.job.namespace, |held| held.journal_bytes += effect.bytes());
        }
    }
}

/// What a value counts for, its name included.
fn kv_bytes(name: &str, value: &KvValue) -> u64 {
    (name.len() + value.bytes.0.len()) as u64
}
