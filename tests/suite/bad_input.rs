//! Bad input: a clear error, the right exit code, nothing lost, the host alive.

use support::host::{HostOptions, HostProcess, cli, until, write_manifest};

use crate::fixture::{Fixture, NEVER_NOW, SOON, SmallDisk, job, test_guest};

fn apply(f: &Fixture, text: &str) -> (Option<i32>, String) {
    let dir = f.path().join("other");
    std::fs::create_dir_all(&dir).unwrap();
    let path = write_manifest(&dir, text);
    let output = f.host.cli(&["apply", path.to_str().unwrap()]);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn manifest(component: &str, more: &str) -> String {
    format!(
        "namespace = \"t\"\n[job.other]\ncomponent = \"{component}\"\nschedule = \"@daily\"\non_unknown = \"skip\"\n{more}\n"
    )
}

#[tokio::test]
async fn a_malformed_manifest_is_told_whole_with_lines_and_columns() {
    let f = Fixture::start(&job(NEVER_NOW, "skip", "", "do = \"noop\"")).await;
    let text = "namespace = \"t\"\n[job.a]\nschedule = \"0 99 * * *\"\ncolour = 1\n[job.b]\ncomponent = 7\n";
    let (code, err) = apply(&f, text);
    assert_eq!(code, Some(2));
    for needle in ["line 3, column", "line 4, column 1", "line 6, column", "lacks `on_unknown`", "charging", "colour"] {
        assert!(err.contains(needle), "`{needle}` is not in {err}");
    }
    // The host goes on.
    assert_eq!(f.trigger("t/job").await["verdict"], "succeeded");
}

/// Every error of the API has one form, the framework's own included.
#[tokio::test]
async fn every_error_of_the_api_is_a_problem() {
    let f = Fixture::start(&job(NEVER_NOW, "skip", "", "do = \"noop\"")).await;
    f.jobs_are_stored(1).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = |path: &str| format!("{}{path}", f.host.url());
    for (request, status) in [
        (http.get(url("/v1/jobs/t/job/ticks?count=many")), 400),
        (http.get(url("/v1/launch")), 400),
        (http.get(url("/v1/nothing")), 404),
        (http.get(url("/v1/jobs/t/none")), 404),
        (http.post(url("/v1/jobs")), 405),
        (http.put(url("/v1/jobs/t/job")).body("{"), 422),
    ] {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{status}");
        let problem: serde_json::Value = response.json().await.unwrap();
        assert_eq!(problem["status"], status);
        assert!(problem["detail"].as_str().unwrap().len() > 10, "{problem}");
    }
}

/// Files of the wrong kind: refused when stored, by name.
#[tokio::test]
async fn what_is_no_runnable_component_is_refused_by_name() {
    let f = Fixture::start(&job(NEVER_NOW, "skip", "", "do = \"noop\"")).await;
    let missing = r#"(component
        (import "acme:db/query@1.0.0" (instance (export "run" (func)) (export "stop" (func))))
        (import "wasi:cli/stdout@0.3.0" (instance (export "write" (func)))))"#;
    let handler = r#"(component (instance $i) (export "wasi:http/incoming-handler@0.2.0" (instance $i)))"#;
    let other_type = r#"(component
        (import "wasi:cli/environment@0.2.0" (instance (export "get-arguments" (func (param "from" u32))))))"#;
    for (bytes, needles) in [
        (wat::parse_str(handler).unwrap(), vec!["wasi:http/incoming-handler@0.2.0", "`wasi:cli/run`", "nobody sends"]),
        (
            wat::parse_str(other_type).unwrap(),
            vec!["another type", "wasi:cli/environment@0.2.0", "WASI 0.2.12", "exports nothing"],
        ),
        (b"\x7fELF\x02\x01".to_vec(), vec!["ELF binary"]),
        (b"\0asm\x01\0\0\0".to_vec(), vec!["core module"]),
        (b"<!doctype html><p>404".to_vec(), vec!["HTML page"]),
        (b"just words".to_vec(), vec!["it is text"]),
        (Vec::new(), vec!["it is empty"]),
        (b"\0asm\x0d\0\x01\0".to_vec(), vec!["it exports nothing", "tickhost:job/entry@0.1.0"]),
        (b"\0asm\x0d\0\x01\0\xff\xff\xff".to_vec(), vec!["no valid component"]),
        (
            wat::parse_str(missing).unwrap(),
            vec!["acme:db/query@1.0.0", "`run`, `stop`", "wasi:cli/stdout@0.3.0", "exports nothing"],
        ),
    ] {
        let path = f.path().join("other.wasm");
        std::fs::write(&path, &bytes).unwrap();
        let (code, err) = apply(&f, &manifest(path.to_str().unwrap(), ""));
        assert_eq!(code, Some(2), "{err}");
        for needle in needles {
            assert!(err.contains(needle), "`{needle}` is not in {err}");
        }
        let inspected = f.host.cli(&["component", "inspect", path.to_str().unwrap()]);
        assert_eq!(inspected.status.code(), Some(2));
    }
    assert_eq!(f.trigger("t/job").await["verdict"], "succeeded");
}

#[tokio::test]
async fn a_limit_that_no_host_has_or_no_component_fits_in_is_refused() {
    let f = Fixture::start(&job(NEVER_NOW, "skip", "", "do = \"noop\"")).await;
    let (code, err) = apply(&f, &manifest(&test_guest(), "limits = { memory = \"64KiB\" }"));
    assert_eq!(code, Some(2));
    assert!(err.contains("begins with") && err.contains("declare more"), "{err}");
    let (code, err) = apply(&f, &manifest(&test_guest(), "limits = { memory = \"64\" }"));
    assert_eq!(code, Some(2));
    assert!(err.contains("a size in quotes with a unit"), "{err}");
    let (code, err) = apply(&f, &manifest("nowhere.wasm", ""));
    assert_eq!(code, Some(2));
    assert!(err.contains("nowhere.wasm"), "{err}");
}

#[tokio::test]
async fn a_body_that_is_no_job_and_a_path_that_is_none_are_problems_not_panics() {
    let f = Fixture::start(&job(NEVER_NOW, "skip", "", "do = \"noop\"")).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    for (path, body, status) in [
        ("/v1/jobs/t/x", "{}", 422),
        ("/v1/jobs/t/x", "not json", 422),
        ("/v1/jobs/T%00/x", "{}", 422),
        ("/v1/nowhere", "{}", 404),
        ("/v1/status", "{}", 405),
    ] {
        let response = http.put(format!("{}{path}", f.host.url())).body(body).send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{path}");
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{path}");
        let problem: serde_json::Value = response.json().await.unwrap();
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
    f.jobs_are_stored(1).await;
    let backwards = f.host.cli(&["ticks", "t/job", "--from", "2999-01-01T00:00:00Z"]);
    assert_eq!(backwards.status.code(), Some(2), "{}", String::from_utf8_lossy(&backwards.stderr));
    assert_eq!(f.host.cli(&["ticks", "t/nobody"]).status.code(), Some(1));
    assert_eq!(f.trigger("t/job").await["verdict"], "succeeded");
}

/// A file system of its own, so that it can be filled.
#[tokio::test]
async fn a_full_disk_refuses_what_is_to_be_stored_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let Some(disk) = SmallDisk::mount(&data) else { return };
    let manifest =
        write_manifest(dir.path(), &job(NEVER_NOW, "skip", "", "do = \"noop\"").replace("{api}", "http://a.test"));
    let options = HostOptions {
        data: data.clone(),
        manifests: vec![manifest.clone()],
        log: dir.path().join("log"),
        kill_at: None,
        under: Vec::new(),
        ..HostOptions::default()
    };
    let host = HostProcess::start(&options).await;
    let stored = async || (host.get("/v1/jobs").await?.as_array()?.len() == 1).then_some(());
    until("the job is stored", SOON, stored).await;
    disk.fill();

    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("noop", "keys")).unwrap();
    let refused = cli(&host.url(), &["apply", manifest.to_str().unwrap()]);
    let err = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{err}");
    assert!(err.contains("the disk is full") && err.contains("reserve_mib"), "{err}");
    let status = host.get("/v1/status").await.unwrap();
    assert!(status["held"].as_str().unwrap().contains("the disk is full"));
    assert_eq!(host.get("/v1/jobs/t/job").await.unwrap()["revision"], 1, "nothing is lost");

    disk.make_room();
    assert!(cli(&host.url(), &["apply", manifest.to_str().unwrap()]).status.success());
}
