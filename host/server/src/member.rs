//! This node as a member: it keeps its executor's session with whoever leads.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use tickhost_executor::order::ASK_EVERY_MS;
use tickhost_ledger::{Digest, command::FORMAT};
use uuid::Uuid;

use crate::{
    host::{Host, VERSION},
    leader::{Ask, Granted},
};

/// An answer takes a majority's confirmation; a leader that does not give one in this time is none.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// After a question that nobody answered.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks for as long as the host runs. Ends the host where the cluster refuses it.
pub(crate) async fn keep_session(host: Host) {
    let mut leaders = host.replica.leader();
    let mut session: Option<Uuid> = None;
    let mut sequence = 0;
    let mut told: Option<BTreeSet<Digest>> = None;
    loop {
        let leader = *leaders.borrow_and_update();
        let pause = match leader {
            None => Duration::from_millis(ASK_EVERY_MS),
            Some(leader) => {
                if session.is_none() {
                    told = None;
                    sequence = match host.executor.next_sequence().await {
                        Ok(sequence) => sequence,
                        Err(error) => return host.fail(error.to_string()),
                    };
                }
                let warm = host.sandbox.warm();
                let news = (told.as_ref() != Some(&warm)).then(|| warm.clone());
                let asked_ms = host.clock.since_boot_ms();
                match ask(&host, leader, question(&host, session, sequence, news)).await {
                    Some(Granted::Session { leader, session: granted, median }) => {
                        if let Some(median) = median {
                            host.watch.told(median, host.clock.since_boot_ms());
                        }
                        match host.executor.hold(leader, granted, asked_ms).await {
                            Ok(true) => {
                                session = Some(granted);
                                told = Some(warm);
                            }
                            // Somebody who was elected later has been obeyed meanwhile.
                            Ok(false) => session = None,
                            Err(error) => return host.fail(error.to_string()),
                        }
                        Duration::from_millis(ASK_EVERY_MS)
                    }
                    Some(Granted::Unknown) => {
                        session = None;
                        continue;
                    }
                    Some(Granted::Refused(why)) => return host.fail(why),
                    Some(Granted::NotLeader) | None => PAUSE,
                }
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = host.ask_now.notified() => {}
            // Whoever leads now knows no session of this node's.
            changed = leaders.changed() => match changed {
                Ok(()) => session = None,
                Err(_) => return,
            },
        }
    }
}

/// What this node asks its leader.
pub(crate) fn question(host: &Host, session: Option<Uuid>, sequence: u64, warm: Option<BTreeSet<Digest>>) -> Ask {
    let tight = host.tight();
    Ask {
        node: host.replica.node(),
        session,
        store: host.executor.witness().store,
        sequence,
        wall: host.clock.wall(),
        accepts: !host.draining.load(Ordering::Relaxed) && tight.is_none(),
        tight,
        full: host.check_space(0).err(),
        disk_free: host.disk_free().unwrap_or_default(),
        applied_index: host.replica.status().applied_index.unwrap_or_default(),
        runs_max: host.settings.runs_max,
        memory_bytes_max: host.settings.memory_bytes_declared_max(),
        tz: tickhost_schedule::TZ_VERSION.to_owned(),
        version: VERSION.to_owned(),
        format: FORMAT,
        warm,
    }
}

async fn ask(host: &Host, leader: u64, ask: Ask) -> Option<Granted> {
    if leader == host.replica.node() {
        return Some(host.grant(ask).await);
    }
    match host.replica.peers().ask(leader, "/leader/ask", &ask, ANSWER_WITHIN).await {
        Ok(granted) => Some(granted),
        Err(error) => {
            tracing::debug!(%error, "ask for a session");
            None
        }
    }
}
