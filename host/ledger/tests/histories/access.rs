//! Who may ask, and what is kept of it.

use super::*;
use tickhost_ledger::{
    access::{Access, Audited, Became, Role},
    command::{IDENTITY, NAMESPACES},
};

const DAY_MS: i64 = 24 * 3_600 * 1_000;

fn access(host: &Host, secret: &[u8], role: Role, namespace: Option<&str>) -> Access {
    Access {
        digest: Digest::of(secret),
        role,
        namespace: namespace.map(ToOwned::to_owned),
        expires_at: Stamp(host.now + DAY_MS),
        stored_at: Stamp(host.now),
        by: "root@10.0.0.1".into(),
    }
}

fn give(host: &mut Host, name: &str, access: &Access) -> Reply {
    host.apply(Command::PutAccess { name: name.into(), access: Box::new(access.clone()) })
}

fn host() -> Host {
    let mut host = Host::empty(1_000_000_000);
    assert_eq!(host.apply(Command::Level { format: IDENTITY }), Reply::Done);
    host
}

fn recorded(host: &Host) -> Vec<(String, String, Became)> {
    host.state.audit().map(|row| (row.what.clone(), row.on.clone(), row.became.clone())).collect()
}

#[test]
fn a_token_is_given_out_once_and_its_name_is_free_again_when_it_is_over() {
    let mut host = host();
    let first = access(&host, b"first", Role::Deployer, Some("billing"));
    assert_eq!(give(&mut host, "ci", &first), Reply::Done);
    assert_eq!(give(&mut host, "ci", &first), Reply::Unchanged, "the answer was lost");
    let second = access(&host, b"second", Role::Deployer, Some("billing"));
    assert_eq!(give(&mut host, "ci", &second), Reply::Refused(Refusal::AccessExists("ci".into())));
    assert_eq!(host.state.access("ci"), Some(&first));

    host.now += DAY_MS;
    let second = access(&host, b"second", Role::Deployer, Some("billing"));
    assert_eq!(give(&mut host, "ci", &second), Reply::Done, "the first has expired");
    assert_eq!(host.state.access("ci"), Some(&second));

    let drop = Command::DropAccess { name: "ci".into(), by: "root@10.0.0.1".into() };
    assert_eq!(host.apply(drop.clone()), Reply::Done);
    assert_eq!(host.apply(drop), Reply::Refused(Refusal::NoAccess("ci".into())));
}

#[test]
fn an_expired_token_is_known_for_a_while_and_then_forgotten() {
    let mut host = host();
    let old = access(&host, b"old", Role::Viewer, None);
    assert_eq!(give(&mut host, "old", &old), Reply::Done);
    host.now += 30 * DAY_MS;
    let new = access(&host, b"new", Role::Viewer, None);
    assert_eq!(give(&mut host, "new", &new), Reply::Done);
    assert!(host.state.access("old").is_some(), "its holder is told that it has expired");
    host.now += 2 * DAY_MS;
    let newer = access(&host, b"newer", Role::Viewer, None);
    assert_eq!(give(&mut host, "newer", &newer), Reply::Done);
    let names: Vec<&String> = host.state.accesses().map(|(name, _)| name).collect();
    assert_eq!(names, ["new", "newer"]);
}

#[test]
fn a_right_that_means_nothing_is_refused() {
    let mut host = host();
    let scoped = access(&host, b"x", Role::Operator, Some("billing"));
    assert!(matches!(give(&mut host, "x", &scoped), Reply::Refused(Refusal::Meaningless(_))));
    let over = Access { expires_at: Stamp(host.now), ..access(&host, b"x", Role::Viewer, None) };
    assert!(matches!(give(&mut host, "x", &over), Reply::Refused(Refusal::Meaningless(_))));
    assert_eq!(host.state.accesses().count(), 0);
}

/// With the change itself, and only with it: what is refused is recorded where it was asked for.
#[test]
fn what_somebody_changed_is_recorded_with_the_change() {
    let mut host = host();
    assert_eq!(host.put(spec()), Reply::Done);
    assert_eq!(host.put(spec()), Reply::Unchanged);
    host.apply(Command::Pause { job: name(), note: "why".into(), by: "alice@10.0.0.7".into() });
    let again = Command::Pause { job: name(), note: "why".into(), by: "alice@10.0.0.7".into() };
    assert!(matches!(host.apply(again), Reply::Refused(_)));
    host.advance_to(1_000_003);
    let job = || name().to_string();
    assert_eq!(
        recorded(&host),
        [
            ("pause".into(), job(), Became::Done),
            ("put-job".into(), job(), Became::Unchanged),
            ("put-job".into(), job(), Became::Done),
        ]
    );
    let newest = host.state.audit().next().unwrap();
    assert_eq!((newest.by.as_str(), newest.times), ("alice@10.0.0.7", 1));
}

/// Rows that older nodes do not know must not be written while there may be one.
#[test]
fn nothing_is_recorded_before_every_node_knows_of_it() {
    let mut host = Host::empty(1_000_000_000);
    assert_eq!(host.apply(Command::Level { format: NAMESPACES }), Reply::Done);
    assert_eq!(host.put(spec()), Reply::Done);
    assert_eq!(host.state.audit().count(), 0);
}

#[test]
fn the_log_forgets_the_oldest_and_refusals_push_out_nothing_that_was_done() {
    let mut host = host();
    let record = |host: &Host, what: &str, became| Audited {
        at: Stamp(host.now),
        by: "mallory@10.0.0.66".into(),
        what: what.into(),
        on: "/v1/jobs/a/b".into(),
        became,
        times: 1,
    };
    assert_eq!(host.put(spec()), Reply::Done);
    let refused = record(&host, "PUT", Became::Refused("no".into()));
    let mut records = vec![refused; 10_001];
    records[0].on = "the first".into();
    // Without the check after each entry: it would read ten thousand rows back every time.
    host.apply_unchecked(vec![Command::Audit { records }]);
    assert_eq!(host.state.audit().count(), 10_001, "10,000 refusals and one change");
    assert!(host.state.audit().all(|row| row.on != "the first"));
    assert!(host.state.audit().any(|row| row.what == "put-job"));

    let done = vec![record(&host, "renew", Became::Begun); 100_000];
    host.apply_unchecked(vec![Command::Audit { records: done }]);
    assert_eq!(host.state.audit().count(), 110_000);
    assert!(host.state.audit().all(|row| row.what != "put-job"), "the oldest change is gone");
    let newest = host.state.audit().next().unwrap();
    assert_eq!(newest.what, "renew", "the newest comes first, whichever kind it is");
    let loaded = State::load(host.rows.iter().map(|(k, v)| (k.as_slice(), v.as_slice()))).unwrap();
    assert_eq!(loaded.hash(), host.state.hash());
}

/// What was revoked after the backup must not be good again; and what happens after the restore is newer than what the
/// backup has, though the log begins anew.
#[test]
fn a_restore_gives_back_the_audit_log_and_no_right() {
    let mut host = host();
    let ci = access(&host, b"ci", Role::Deployer, None);
    assert_eq!(give(&mut host, "ci", &ci), Reply::Done);
    assert_eq!(host.put(spec()), Reply::Done);
    let before = recorded(&host);
    host.index = 0;
    let restore = Command::Restore {
        cluster: Uuid::from_u128(11),
        node: 2,
        address: "n:1".into(),
        backup: "monday".into(),
        taken_at: Stamp(host.now),
    };
    assert_eq!(host.apply(restore), Reply::Done);
    assert_eq!(host.state.accesses().count(), 0);
    let ops = access(&host, b"ops", Role::Operator, None);
    assert_eq!(give(&mut host, "ops", &ops), Reply::Done);
    let after = recorded(&host);
    assert_eq!(after[0], ("create-token".into(), "token ops".into(), Became::Done));
    assert_eq!(after[1..], before);
}
