//! What an operator writes of namespaces: `[namespace.NAME]`, or `[namespace."*"]` for all that have none of their own.

use std::path::Path;

use tickhost_ledger::{
    ids::check_name,
    quota::{EVERY_NAMESPACE, Quota},
};
use toml::{Spanned, de::DeValue};

use super::{Fields, Reader, Refused, read_toml};

/// Counts and bytes that mean something. A quota is no promise that there is as much.
const ANY: std::ops::RangeInclusive<u64> = 0..=1 << 50;
const SOME: std::ops::RangeInclusive<u64> = 1..=1 << 50;
/// Milliseconds of an interval and of CPU time: up to a year, up to a thousand cores for an hour.
const TIME_MS: std::ops::RangeInclusive<u64> = 1_000..=366 * 24 * 3_600_000;

/// Reads a file of quotas.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse_quotas(path: &Path, text: &str) -> Result<Vec<(String, Quota)>, Refused> {
    read_toml(path, text, Vec::new(), |reader, table, quotas| {
        let mut fields = Fields::new(reader, "the file", table.get_ref(), table.span(), &["namespace"]);
        let help = "write a table `[namespace.NAME]` for each namespace";
        let Some(namespaces) = fields.required("namespace", help, |r, v| r.table(v, "namespace")) else { return };
        for (key, value) in namespaces.iter() {
            let name = key.get_ref().to_string();
            let is_named =
                name == EVERY_NAMESPACE || reader.checked_span(key.span(), check_name("namespace", &name)).is_some();
            let quota = reader.quota(value, &name);
            quotas.extend(quota.filter(|_| is_named).map(|quota| (name, quota)));
        }
    })
}

impl Reader<'_> {
    fn quota(&mut self, value: &Spanned<DeValue<'_>>, name: &str) -> Option<Quota> {
        let what = format!("[namespace.{name}]");
        let table = self.table(value, &what)?;
        let known = [
            "jobs",
            "components",
            "shortest_interval",
            "launches_per_minute",
            "runs",
            "memory",
            "cpu_per_hour",
            "kv",
            "journal",
            "limits",
            "hosts",
        ];
        let problems_before = self.problems.len();
        let mut f = Fields::new(self, &what, table, value.span(), &known);
        let seconds = |f: &mut Fields<'_, '_, '_>, name: &str| {
            let ms = f.optional(name, None, |r, v| r.duration_ms(v, &TIME_MS).map(Some)).flatten()?;
            if !ms.is_multiple_of(1_000) {
                f.problem(name, format!("`{name}` is {ms} ms; it is counted in whole seconds"), None);
            }
            Some(ms / 1_000)
        };
        let quota = Quota {
            shortest_interval_s: seconds(&mut f, "shortest_interval"),
            cpu_s_per_hour: seconds(&mut f, "cpu_per_hour"),
            jobs: f.optional("jobs", None, |r, v| r.number(v, &ANY).map(Some)).flatten(),
            component_bytes: f.optional("components", None, |r, v| r.bytes(v, &ANY).map(Some)).flatten(),
            launches_per_minute: f.optional("launches_per_minute", None, |r, v| r.number(v, &SOME).map(Some)).flatten(),
            runs: f.optional("runs", None, |r, v| r.number(v, &SOME).map(Some)).flatten(),
            memory_bytes: f.optional("memory", None, |r, v| r.bytes(v, &SOME).map(Some)).flatten(),
            kv_bytes: f.optional("kv", None, |r, v| r.bytes(v, &ANY).map(Some)).flatten(),
            journal_bytes: f.optional("journal", None, |r, v| r.bytes(v, &ANY).map(Some)).flatten(),
            hosts: f.optional("hosts", None, |r, v| r.allow(v).map(Some)).flatten(),
            limits: f.optional("limits", Default::default(), Reader::largest_limits).unwrap_or_default(),
        };
        (self.problems.len() == problems_before).then_some(quota)
    }

    /// As a job declares them; only those that are written are bounded.
    fn largest_limits(&mut self, value: &Spanned<DeValue<'_>>) -> Option<std::collections::BTreeMap<String, u64>> {
        let limits = self.limits(value)?;
        let table = self.table(value, "limits")?;
        let is_written = |name: &&str| table.iter().any(|(key, _)| key.get_ref() == *name);
        let amounts = limits.amounts().into_iter().filter(|(name, _)| is_written(name));
        Some(amounts.map(|(name, amount)| (name.to_owned(), amount)).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn quotas_read_with_their_units_and_all_their_faults() {
        let good = "[namespace.a]\njobs = 3\ncpu_per_hour = \"30m\"\nmemory = \"1GiB\"\nhosts = []\n\
                    limits = { cpu = \"5s\" }\n[namespace.\"*\"]\nshortest_interval = \"1m\"\n";
        let quotas = parse_quotas(Path::new("q.toml"), good).unwrap();
        let a = &quotas.iter().find(|(name, _)| name == "a").unwrap().1;
        assert_eq!((a.jobs, a.cpu_s_per_hour, a.memory_bytes), (Some(3), Some(1_800), Some(1 << 30)));
        assert_eq!((a.hosts.as_deref(), a.runs), (Some(&[][..]), None));
        assert_eq!(a.limits.iter().map(|(name, most)| (name.as_str(), *most)).collect::<Vec<_>>(), [("cpu", 5_000)]);
        assert_eq!(quotas.iter().find(|(name, _)| name == "*").unwrap().1.shortest_interval_s, Some(60));
        let bad = "[namespace.A]\nruns = 0\n[namespace.b]\nshortest_interval = \"1500ms\"\nmemroy = \"1GiB\"\n\
                   hosts = [\"example.com\"]\nlimits = { cpu = 5 }\n";
        let refused = parse_quotas(Path::new("q.toml"), bad).unwrap_err();
        let lines: Vec<usize> = refused.problems.iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [1, 2, 4, 5, 6, 7], "{:#?}", refused.problems);
    }
}
