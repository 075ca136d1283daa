//! CronJobs of Kubernetes, as YAML: one or several documents, lists included.

use serde_json::Value;
use tickhost_ledger::spec::bounds;

use super::{Draft, Imported, call, check, name_from};

/// Reads CronJobs.
///
/// # Errors
/// Text that is no YAML, or has no CronJob in it.
pub(crate) fn cronjob(text: &str) -> Result<Imported, String> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|e| format!("this is no YAML that can be read: {e}"))?;
    let mut imported = Imported::default();
    let mut found = 0;
    for (index, document) in documents.iter().enumerate() {
        let items: Vec<&Value> = match document["items"].as_array() {
            Some(items) => items.iter().collect(),
            None => vec![document],
        };
        for item in items {
            match item["kind"].as_str() {
                Some("CronJob") => {
                    found += 1;
                    one(item, &mut imported);
                }
                _ if item.is_null() => {}
                kind => imported.remark(
                    format!("document {}", index + 1),
                    format!("`kind: {}` is no CronJob", kind.unwrap_or("(none)")),
                ),
            }
        }
    }
    if found == 0 {
        return Err("there is no `kind: CronJob` in it".into());
    }
    Ok(imported)
}

/// Fields of the specification that carry over, or are spoken of one by one.
const SPEC: [&str; 8] = [
    "schedule",
    "timeZone",
    "concurrencyPolicy",
    "startingDeadlineSeconds",
    "suspend",
    "jobTemplate",
    "successfulJobsHistoryLimit",
    "failedJobsHistoryLimit",
];

fn one(item: &Value, imported: &mut Imported) {
    let title = item["metadata"]["name"].as_str().unwrap_or("cronjob");
    let spec = &item["spec"];
    let place = |path: &str| format!("{title}: spec.{path}");
    let Some(schedule) = spec["schedule"].as_str() else {
        imported.remark(place("schedule"), "it has no schedule; the job is left out");
        return;
    };
    let zone = spec["timeZone"].as_str();
    // There `?` is another `*`; here it picks a value.
    let written = schedule;
    let schedule = &schedule.replace('?', "*");
    if written != schedule {
        imported.remark(place("schedule"), format!("`{written}` is `{schedule}` here, where `?` picks a value"));
    }
    if let Err(error) = check(schedule, zone.unwrap_or("UTC")) {
        imported
            .remark(place("schedule"), format!("`{schedule}`: {}; {}; the job is left out", error.message, error.help));
        return;
    }
    let mut draft = Draft {
        name: imported.unique(&name_from(title)),
        schedule: schedule.clone(),
        zone: zone.map(ToOwned::to_owned),
        ..Draft::default()
    };
    if zone.is_none() && !schedule.contains("TZ=") {
        imported
            .remark(place("timeZone"), "it runs in the zone of its controller, most often UTC; here it runs in UTC");
    }
    match spec["concurrencyPolicy"].as_str() {
        None | Some("Allow") => draft.fields.push(("overlap", "\"allow\"".into())),
        Some("Forbid") => draft.fields.push(("overlap", "\"skip\"".into())),
        Some("Replace") => draft.fields.push(("overlap", "\"replace\"".into())),
        Some(other) => imported.remark(
            place("concurrencyPolicy"),
            format!("`{other}` is none that is known; the default here is \"skip\""),
        ),
    }
    let deadline = &spec["startingDeadlineSeconds"];
    match deadline.as_u64().filter(|seconds| bounds::START_DEADLINE_MS.contains(&seconds.saturating_mul(1_000))) {
        Some(seconds) => draft.fields.push(("start_deadline", format!("\"{seconds}s\""))),
        None if deadline.is_null() => imported.remark(
            place("startingDeadlineSeconds"),
            "it may start however late; here an hour late at the most, unless `start_deadline` says otherwise",
        ),
        None => imported.remark(
            place("startingDeadlineSeconds"),
            format!("`{deadline}` is outside of 1 s to 7 days; here an hour late at the most, unless `start_deadline` says otherwise"),
        ),
    }
    if spec["suspend"].as_bool() == Some(true) {
        imported.remark(
            place("suspend"),
            format!(
                "it is suspended; after `tickhost apply` pause it with `tickhost pause NAMESPACE/{} --note …`",
                draft.name
            ),
        );
    }
    for limit in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        if !spec[limit].is_null() {
            imported.remark(place(limit), "how much history is kept is not the job's to say: the newest 100 launches, and those that went wrong for 30 days");
        }
    }
    for (name, _) in spec.as_object().into_iter().flatten().filter(|(name, _)| !SPEC.contains(&name.as_str())) {
        imported.remark(place(name), "it has no counterpart");
    }
    let metadata = item["metadata"].as_object().into_iter().flatten().filter(|(name, _)| *name != "name");
    let names: Vec<&str> = metadata.map(|(name, _)| name.as_str()).collect();
    if !names.is_empty() {
        let text = format!("{} do not carry over; the manifest has one namespace for all its jobs", names.join(", "));
        imported.remark(format!("{title}: metadata"), text);
    }
    template(&spec["jobTemplate"]["spec"], &mut draft, &place, imported);
    imported.jobs.push(draft);
}

fn template(job: &Value, draft: &mut Draft, place: &dyn Fn(&str) -> String, imported: &mut Imported) {
    let path = |name: &str| place(&format!("jobTemplate.spec.{name}"));
    match job["backoffLimit"].as_u64() {
        Some(0) => {}
        limit => imported.remark(
            path("backoffLimit"),
            format!(
                "a failed run is tried again up to {} times; say it with [retry], which goes by `on_unknown`",
                limit.unwrap_or(6)
            ),
        ),
    }
    let mut wall_s = job["activeDeadlineSeconds"].as_u64();
    for (name, _) in job.as_object().into_iter().flatten() {
        if !["backoffLimit", "activeDeadlineSeconds", "template"].contains(&name.as_str()) {
            imported.remark(path(name), "it has no counterpart");
        }
    }
    let pod = &job["template"]["spec"];
    let pod_path = |name: &str| path(&format!("template.spec.{name}"));
    for (name, _) in pod.as_object().into_iter().flatten() {
        if !["containers", "restartPolicy"].contains(&name.as_str()) {
            imported.remark(
                pod_path(name),
                "a component has nothing of the kind: no files, no account, no other containers",
            );
        }
    }
    if pod["restartPolicy"].as_str() == Some("OnFailure") {
        imported.remark(pod_path("restartPolicy"), "`OnFailure` starts it again in place; say it with [retry]");
    }
    let containers = pod["containers"].as_array().cloned().unwrap_or_default();
    let words = |container: &Value, name: &str| -> Vec<String> {
        let list = container[name].as_array().into_iter().flatten();
        list.map(|word| word.as_str().map_or_else(|| word.to_string(), ToOwned::to_owned)).collect()
    };
    for (n, container) in containers.iter().enumerate() {
        if n > 0 {
            let name = container["name"].as_str().unwrap_or("(no name)");
            imported
                .remark(pod_path(&format!("containers[{n}]")), format!("`{name}` is left out: a job is one component"));
        }
        let path = |name: &str| pod_path(&format!("containers[{n}].{name}"));
        for (name, _) in container.as_object().into_iter().flatten() {
            match name.as_str() {
                "name" | "image" | "imagePullPolicy" | "command" | "args" => {}
                "env" | "envFrom" => {
                    imported.remark(path(name), "a component has no environment; give it what it needs in [config]");
                }
                "resources" => {
                    imported.remark(path(name), "say it with [limits]: memory, and CPU time in all instead of cores");
                }
                _ => imported.remark(path(name), "it has no counterpart"),
            }
        }
    }
    let image = containers.first().and_then(|container| container["image"].as_str()).unwrap_or_default();
    let mut command = containers
        .first()
        .map(|container| [words(container, "command"), words(container, "args")].concat())
        .unwrap_or_default();
    // An image that is `curl` starts it by itself.
    if containers.first().is_some_and(|container| container["command"].is_null())
        && image.split(['/', ':']).any(|part| part == "curl")
    {
        command.insert(0, "curl".into());
    }
    let call = match command.as_slice() {
        [shell, flag, line] if ["sh", "bash"].iter().any(|name| shell.ends_with(name)) && flag == "-c" => {
            call::read(line)
        }
        words => call::from_words(words),
    };
    draft.command = format!("{image} {}", shell_words::join(&command)).trim().replace('\n', "; ");
    match call.filter(|_| containers.len() == 1) {
        Some(call) => {
            wall_s = wall_s.or(call.wall_s);
            for remark in &call.remarks {
                imported.remark(pod_path("containers[0]"), remark.clone());
            }
            draft.call = Some(call);
        }
        None => imported.remark(
            pod_path("containers"),
            format!(
                "`{}` needs a component that does the same; the manifest names one that is yet to be written",
                draft.command
            ),
        ),
    }
    if let Some(seconds) = wall_s {
        imported.limit_wall(draft, path("activeDeadlineSeconds"), seconds);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const TWO: &str = r#"
apiVersion: batch/v1
kind: CronJob
metadata:
  name: Nightly_Report
spec:
  schedule: "30 2 * * MON-FRI"
  timeZone: Europe/Berlin
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 600
  suspend: true
  successfulJobsHistoryLimit: 3
  jobTemplate:
    spec:
      backoffLimit: 2
      activeDeadlineSeconds: 1800
      template:
        spec:
          restartPolicy: Never
          serviceAccountName: reports
          containers:
          - name: report
            image: registry.example.com/report:1.4
            env: [{name: REGION, value: eu}]
            command: ["/report", "--all"]
---
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: ping}
spec:
  schedule: "@hourly"
  jobTemplate: {spec: {backoffLimit: 0, template: {spec: {containers: [{name: c, image: "curlimages/curl:8.10.1", args: ["-fsS", "-m", "20", "https://example.com/ping"]}]}}}}
"#;

    #[test]
    fn cronjobs_carry_over_what_they_can_and_the_rest_is_told() {
        let imported = cronjob(TWO).unwrap();
        let [report, ping] = imported.jobs.as_slice() else { panic!("{:?}", imported.jobs) };
        assert_eq!((report.name.as_str(), report.schedule.as_str()), ("nightly-report", "30 2 * * MON-FRI"));
        assert_eq!(report.zone.as_deref(), Some("Europe/Berlin"));
        let fields = [("overlap", "\"skip\""), ("start_deadline", "\"600s\""), ("limits", "{ wall = \"1800s\" }")];
        assert_eq!(report.fields, fields.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(report.command, "registry.example.com/report:1.4 /report --all");
        assert_eq!(ping.call.as_ref().unwrap().config()["url"], "https://example.com/ping");
        assert!(ping.fields.contains(&("overlap", "\"allow\"".into())));
        let places: Vec<&str> = imported.remarks.iter().map(|remark| remark.place.as_str()).collect();
        for place in [
            "Nightly_Report: spec.suspend",
            "Nightly_Report: spec.successfulJobsHistoryLimit",
            "Nightly_Report: spec.jobTemplate.spec.backoffLimit",
            "Nightly_Report: spec.jobTemplate.spec.template.spec.serviceAccountName",
            "Nightly_Report: spec.jobTemplate.spec.template.spec.containers[0].env",
            "Nightly_Report: spec.jobTemplate.spec.template.spec.containers",
            "document 2",
            "ping: spec.timeZone",
            "ping: spec.startingDeadlineSeconds",
        ] {
            assert!(places.contains(&place), "{place}: {places:#?}");
        }
        assert_eq!(places.len(), 9, "{places:#?}");
        assert!(cronjob("kind: Service").is_err());
        assert!(cronjob("a: [").is_err());
    }
}
