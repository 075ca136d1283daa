//! A new epoch from a backup: what became of ticks after it was taken, nobody knows.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{
    FIRST_NODE, State,
    apply::{Answer, Context},
};
use crate::{
    command::{Refusal, Reply},
    ids::{Digest, LaunchId, Stamp},
    launch::{Event, Outcome, SkipReason},
    rows::{AtLarge, Cluster, Gap, GapChoice, Restored, Usage},
    spec::OnUnknown,
};

impl State {
    pub(super) fn restore(
        &mut self,
        cx: &mut Context,
        id: Uuid,
        node: u64,
        address: &str,
        backup: &str,
        taken_at: Stamp,
    ) -> Answer {
        // No number is given twice. A host without peers has no other.
        let fits = |was: &&Cluster| node == if address.is_empty() { FIRST_NODE } else { was.next_node };
        let was = self.cluster().filter(fits).cloned().ok_or(Refusal::NoNode(node))?;
        // A backup that was taken on hold still waits for what that one waited for.
        let mut at_large: BTreeMap<u64, AtLarge> = self.hold().map(|held| held.at_large.clone()).unwrap_or_default();
        let nodes: Vec<u64> = self.nodes.iter().map(|(node, _)| *node).collect();
        for number in nodes {
            if let Some(row) = self.nodes.get(&number)
                && let Some(executor) = &row.executor
            {
                at_large.insert(number, AtLarge { store: executor.store, address: row.address.clone() });
            }
            self.nodes.remove(&number);
        }
        let tokens: Vec<Digest> = self.tokens.iter().map(|(digest, _)| *digest).collect();
        for token in tokens {
            self.tokens.remove(&token);
        }
        // Nobody knows which of them were revoked since.
        let accesses: Vec<String> = self.accesses().map(|(name, _)| name.clone()).collect();
        for name in accesses {
            self.access.remove(&name);
        }
        let restored = Restored { backup: backup.to_owned(), taken_at, at: cx.at, at_large, gap: None };
        let row = Cluster {
            id,
            epoch: was.epoch + 1,
            next_node: was.next_node.max(node + 1),
            // This release may name ticks otherwise than the one that took the backup.
            names: String::new(),
            restored: Some(restored),
            ..was
        };
        self.cluster.insert((), row);
        self.first_node(cx, node, address, "the restore");
        let live: Vec<LaunchId> = self
            .all_open()
            .filter(|id| self.launches.get(id).is_some_and(|launch| launch.live().is_some()))
            .cloned()
            .collect();
        let evidence = format!("it was open in backup `{backup}`, and what became of it afterwards is not known there");
        for id in live {
            self.close_attempt(cx, &id, &Outcome::Unanswered { evidence: evidence.clone() }, Usage::default());
        }
        Ok(Reply::Done)
    }

    /// An executor takes part in this epoch: it has been let in by it, and obeys no leader from before.
    pub(super) fn takes_part(&mut self, store: Uuid) {
        let is_awaited = self.hold().is_some_and(|held| held.at_large.values().any(|node| node.store == store));
        if let Some(restored) = self.cluster.get_mut(&()).filter(|_| is_awaited).and_then(|c| c.restored.as_mut()) {
            restored.at_large.retain(|_, node| node.store != store);
        }
    }

    pub(super) fn destroyed(&mut self, node: u64) -> Answer {
        let held = self.hold().ok_or(Refusal::NotOnHold)?;
        if !held.at_large.contains_key(&node) {
            return Err(Refusal::NotAtLarge { node, awaited: held.at_large.keys().copied().collect() });
        }
        if let Some(restored) = self.cluster.get_mut(&()).and_then(|cluster| cluster.restored.as_mut()) {
            restored.at_large.remove(&node);
        }
        Ok(Reply::Done)
    }

    pub(super) fn release(&mut self, cx: &mut Context, choice: GapChoice, by: &str) -> Answer {
        let held = self.hold().ok_or(Refusal::NotOnHold)?;
        if !held.at_large.is_empty() {
            let at_large = held.at_large.iter().map(|(node, row)| (*node, row.address.clone()));
            return Err(Refusal::AtLarge(at_large.collect()));
        }
        if let Some(restored) = self.cluster.get_mut(&()).and_then(|cluster| cluster.restored.as_mut()) {
            restored.gap = Some(Gap { until: cx.at, choice, by: by.to_owned() });
        }
        // What was placed later than this moment, nobody can have begun.
        let in_gap = |id: &&LaunchId| self.launches.get(id).is_some_and(|launch| launch.start_after <= cx.at);
        let open: Vec<LaunchId> = self.all_open().filter(in_gap).cloned().collect();
        for id in open {
            let spec = self.jobs.get(&id.job).map(|job| &job.spec);
            let deadline_ms = spec.map_or(0, |spec| u64::from(spec.start_deadline_s) * 1_000);
            if choice == GapChoice::Skip || spec.is_none_or(|spec| spec.on_unknown == OnUnknown::Skip) {
                self.advance(cx, &id, &Event::Withdrawn(SkipReason::Restored));
            } else if let Some(launch) = self.launches.get_mut(&id) {
                self.index.leave(&id, launch);
                launch.start_by = launch.start_by.max(cx.at.plus_ms(deadline_ms));
                self.index.enter(&id, launch);
            }
        }
        Ok(Reply::Done)
    }
}
