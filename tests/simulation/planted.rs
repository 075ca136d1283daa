//! Bugs that are planted to see whether they are found. Where each of them is, `fault::planted` says in the code, and a
//! release build has none of them.
//!
//! A rule that a second one covers cannot be seen to be missing: both are left out together then, and the text says so.

use std::process::ExitCode;

/// A bug, and what must find it.
struct Planted {
    name: &'static str,
    /// What is left out.
    what: &'static str,
    /// The kinds of faults that bring it to light; all of them where there are none.
    only: &'static [&'static str],
    /// The invariants that may find it first.
    found_by: &'static [&'static str],
}

const fn bug(
    name: &'static str,
    what: &'static str,
    only: &'static [&'static str],
    found_by: &'static [&'static str],
) -> Planted {
    Planted { name, what, only, found_by }
}

/// Simulations that are tried for each of them at the most.
const SEEDS: u64 = 150;

/// What was acknowledged is gone from a disk: whatever rests on it shows that.
const WHAT_IS_LOST: &[&str] = &[
    "one leader a term",
    "changes last",
    "the same state",
    "intent first",
    "exact coverage",
    "at most once",
    "one run",
    // A state from before a run's end has it asked for, and its executor has forgotten what was acknowledged.
    "never binds",
    "heals",
    "nobody panics",
];

/// All of them.
const BUGS: &[Planted] = &[
    bug(
        "acknowledge-unsynced",
        "entries are acknowledged before they are on the disk",
        &["power", "all"],
        WHAT_IS_LOST,
    ),
    bug("lie-about-sync", "a disk says that it has synced, and has not", &["power", "all"], &["row before run"]),
    bug("forget-the-vote", "a vote is not written down", &["kill"], &["one leader a term"]),
    bug("mark-before-rows", "the index that rows stand for is written before them", &["power", "all"], WHAT_IS_LOST),
    bug("run-unsynced", "a guest begins before its row is on the disk", &["power"], &["row before run"]),
    bug(
        "never-unsynced",
        "\"it never began\" is said before it is on the disk",
        &["freeze", "slow-link"],
        &["row before run"],
    ),
    bug(
        "no-tombstone",
        "\"it never began\" is said of a run that may still arrive",
        &["freeze", "slow-link"],
        &["one run", "at most once", "never binds", "row before run"],
    ),
    bug(
        "outlive-the-session",
        "guests go on when the session has lapsed",
        &["freeze", "cut"],
        &["stopped when closed", "one run", "no effect"],
    ),
    bug(
        "begin-when-lapsed",
        "a guest begins though the session has lapsed",
        &["freeze", "cut"],
        &["stopped when closed", "one run"],
    ),
    bug(
        "send-when-lapsed",
        "an effect is carried out though the session has lapsed",
        &["freeze", "slow-link"],
        &["no effect"],
    ),
    bug(
        "obey-anyone",
        "neither floor nor session nor number of an order is looked at, nor the session before a guest begins",
        &["freeze", "slow-link"],
        &["stopped when closed", "one run"],
    ),
    bug(
        "no-answer-is-not-sent",
        "what was not answered is taken for not sent",
        &["freeze", "slow-link", "cut"],
        &["one run", "at most once", "never binds"],
    ),
    bug("resolve-nothing", "a new leader asks nobody what became of runs", &["kill", "transfer"], &["heals"]),
    bug(
        "lapse-early",
        "a silent executor is given up before it has stopped its guests",
        &["freeze", "cut"],
        &["one run", "stopped when closed", "no effect"],
    ),
    bug("never-lapse", "a silent executor is never given up", &["kill"], &["nothing runs for ever"]),
    bug("own-clock", "ticks are decided by the leader's own clock", &["clock"], &["never early"]),
    bug(
        "keep-the-lease",
        "a leader that hands over reads and orders by its lease",
        &["transfer", "slow-link"],
        &["one leader a term", "changes last"],
    ),
    bug(
        "sleep-with-a-lease",
        "a lease is held through the sleep of the machine",
        &["freeze"],
        &["one leader a term", "changes last"],
    ),
    bug("read-without-asking", "a node answers from what it knows", &["slow-link", "cut"], &["changes last"]),
    bug(
        "take-any-disk",
        "a node takes part with whatever disk it finds",
        &["member"],
        // The node that founded the cluster founds another one with an empty disk, and leads that.
        &["wrong disks stay out", "one leader a term", "nobody panics"],
    ),
];

/// What they are called.
pub(crate) fn names() -> Vec<&'static str> {
    BUGS.iter().map(|bug| bug.name).collect()
}

/// Looks for each of them, and says what found it.
pub(crate) fn find_all() -> ExitCode {
    let missed = BUGS.iter().filter(|bug| !find(bug)).count();
    println!("{} bugs are planted, {missed} of them not found", BUGS.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn find(bug: &Planted) -> bool {
    let mut arguments = vec!["--planted", bug.name];
    bug.only.iter().for_each(|kind| arguments.extend(["--only", *kind]));
    let said = crate::simulate(1..SEEDS + 1, &arguments, |said| !said.holds);
    let found = said.iter().find(|said| !said.holds);
    let how = found.map_or("NOT FOUND", |said| said.text.split("FAILS ").nth(1).unwrap_or(&said.text));
    let is_expected = bug.found_by.iter().any(|invariant| how.contains(invariant));
    let unexpected = if found.is_some() && !is_expected { " NOT BY WHAT SHOULD" } else { "" };
    println!("{} ({}): {} simulations{unexpected}: {how}", bug.name, bug.what, said.len());
    found.is_some() && is_expected
}
