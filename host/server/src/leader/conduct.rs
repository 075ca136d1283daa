//! The leader's loop: ask the conductor what is next, and propose it.

use std::{sync::Arc, time::Duration};

use tickhost_ledger::{
    Command, Reply,
    conductor::{self, Conductor},
};

use super::{PAUSE, Reign};
use crate::host::Host;

/// The longest sleep: a wall clock that is set is noticed within it.
const NAP_MAX: Duration = Duration::from_millis(500);

/// Plans and proposes, for as long as the term lasts.
pub(super) async fn conduct(host: &Host, reign: &Arc<Reign>) {
    let mut conductor = Conductor::default();
    loop {
        // Asked for before the state is read: what changes in between wakes at once.
        let woken = host.wake.notified();
        let at = match host.believed_now() {
            Ok(at) => at,
            Err(why) => {
                tracing::warn!(why, "hold everything");
                tokio::select! {
                    () = woken => {}
                    () = tokio::time::sleep(NAP_MAX) => {}
                }
                continue;
            }
        };
        // By what most clocks say: one that is behind must not open again what was decided.
        let at_most = host.at_most().unwrap_or(at);
        if host.replica.read(|state| conductor::is_ahead(state, at_most)) {
            if let Err(error) = super::rewind(host, reign, at_most).await {
                tracing::warn!(%error, "give jobs their ticks back");
                tokio::time::sleep(PAUSE).await;
            }
            continue;
        }
        conductor.held_back = host.clock.held_back();
        conductor.facts = Arc::new(reign.facts(host.replica.node()));
        conductor.catch_up_per_s = host.settings.catch_up_per_s;
        let mut plan = host.replica.read(|state| conductor.plan(state, at));
        for (job, why) in &plan.faults {
            tracing::error!(%job, why, "a stored job cannot be scheduled; the others go on");
        }
        if let Err(why) = host.check_room() {
            let before = plan.commands.len();
            plan.commands.retain(|command| !matches!(command, Command::Intend { .. }));
            if plan.commands.len() < before {
                tracing::warn!(why, "hold launches");
            }
        }
        if !plan.commands.is_empty() {
            match host.replica.proposer().propose(Some(reign.term()), at, plan.commands).await {
                Ok(replies) if replies.iter().all(|r| matches!(r, Reply::Refused(_))) => {
                    tracing::debug!(?replies, "a plan was out of date");
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "propose a plan");
                    tokio::time::sleep(PAUSE).await;
                }
            }
            continue;
        }
        let wake_at = host.replica.read(|state| conductor.wake_at(state, at));
        let until_next = wake_at.map_or(NAP_MAX, |next| {
            let now = host.believed_now().unwrap_or(at);
            Duration::from_millis(u64::try_from(next.0 - now.0).unwrap_or(0).max(1))
        });
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(until_next.min(NAP_MAX)) => {}
        }
    }
}
