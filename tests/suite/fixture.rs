//! One host, one recorder, and jobs of the test guest.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::Value;
use support::{
    guest,
    host::{HostOptions, HostProcess, is_open, until, write_manifest},
    recorder::{Behaviour, Recorder},
};
use tempfile::TempDir;

/// Long enough for a busy machine, short enough to notice.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) struct Fixture {
    pub(crate) host: HostProcess,
    pub(crate) recorder: Recorder,
    pub(crate) options: HostOptions,
    pub(crate) dir: TempDir,
}

/// The test guest, for a manifest.
pub(crate) fn test_guest() -> String {
    guest("tests/guests/test-guest.wasm").display().to_string()
}

/// A manifest of one job `t/job`. `{api}` stands for the recorder.
pub(crate) fn job(schedule: &str, on_unknown: &str, more: &str, config: &str) -> String {
    format!(
        "namespace = \"t\"\n[job.job]\ncomponent = \"{}\"\nschedule = \"{schedule}\"\non_unknown = \"{on_unknown}\"\n\
         allow = [\"{{api}}\"]\n{more}\nconfig = {{ {config} }}\n",
        test_guest()
    )
}

/// A schedule that does not come round while a test runs.
pub(crate) const NEVER_NOW: &str = "0 0 29 2 *";

impl Fixture {
    pub(crate) async fn start(manifest: &str) -> Self {
        Self::start_with(manifest, None).await
    }

    pub(crate) async fn start_with(manifest: &str, kill_at: Option<&str>) -> Self {
        Self::start_under(manifest, kill_at, Vec::new()).await
    }

    pub(crate) async fn start_under(manifest: &str, kill_at: Option<&str>, under: Vec<String>) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), manifest, kill_at, under).await
    }

    /// With files beside the manifest.
    pub(crate) async fn start_beside(manifest: &str, files: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        files(dir.path());
        Self::start_in(dir, manifest, None, Vec::new()).await
    }

    async fn start_in(dir: TempDir, manifest: &str, kill_at: Option<&str>, under: Vec<String>) -> Self {
        let recorder = Recorder::start(Behaviour { customers: 3, ..Behaviour::default() }).await.unwrap();
        let manifest = write_manifest(dir.path(), &manifest.replace("{api}", &recorder.url()));
        let options = HostOptions {
            data: dir.path().join("data"),
            manifests: vec![manifest],
            log: dir.path().join("host.log"),
            kill_at: kill_at.map(ToOwned::to_owned),
            under,
            ..HostOptions::default()
        };
        let host = HostProcess::start(&options).await;
        Self { host, recorder, options, dir }
    }

    /// Waits until the manifest's jobs are there.
    pub(crate) async fn jobs_are_stored(&self, count: usize) {
        until("the jobs are stored", SOON, async || {
            (self.host.get("/v1/jobs").await?.as_array()?.len() >= count).then_some(())
        })
        .await;
    }

    /// Launches a job outside of its schedule and waits for its end.
    pub(crate) async fn trigger(&self, job: &str) -> Value {
        self.jobs_are_stored(1).await;
        let output = self.host.cli(&["trigger", job, "--format", "json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let launch: Value = serde_json::from_slice(&output.stdout).unwrap();
        self.closed(launch["launch"].as_str().unwrap()).await
    }

    /// A launch once it is closed.
    pub(crate) async fn closed(&self, launch: &str) -> Value {
        until(launch, SOON, async || {
            let story = self.host.launch(launch).await?;
            let verdict = story["verdict"].as_str()?.to_owned();
            (!is_open(&verdict)).then_some(story)
        })
        .await
    }

    /// Kills the host and starts it again on the same data, without any kill point.
    pub(crate) async fn restart(&mut self) {
        self.host.kill();
        self.options.kill_at = None;
        self.host = HostProcess::start(&self.options).await;
    }

    pub(crate) async fn until_it_killed_itself(&mut self) {
        until("the kill point", SOON, async || self.host.has_killed_itself().then_some(())).await;
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// The outcome of the last attempt, e.g. `("over-limit", {...})`.
pub(crate) fn outcome(story: &Value) -> (String, Value) {
    let attempts = story["attempts"].as_array().unwrap();
    let outcome = &attempts.last().unwrap()["ended"]["outcome"];
    let (name, value) = outcome.as_object().unwrap().iter().next().unwrap();
    (name.clone(), value.clone())
}

/// A file system of 400 MiB, of which a host keeps 256 in reserve.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Needs root for the mount; elsewhere it says so.
    pub(crate) fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=400m", "tmpfs"]).arg(at).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(at.to_owned()));
        }
        eprintln!("not root: a file system that can be filled cannot be mounted, so this is not tested here");
        None
    }

    pub(crate) fn fill(&self) {
        std::fs::write(self.0.join("filler"), vec![0_u8; 200 << 20]).unwrap();
    }

    pub(crate) fn make_room(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
