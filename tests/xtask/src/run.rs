//! Running programs, and saying so.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What went wrong, in a sentence.
pub(crate) struct Failed(pub(crate) String);

pub(crate) fn say(what: &str) {
    eprintln!("xtask: {what}");
}

/// A program with its arguments.
pub(crate) struct Step {
    command: Command,
}

impl Step {
    pub(crate) fn new(program: impl AsRef<OsStr>, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments);
        Self { command }
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Runs it and waits.
    pub(crate) fn run(mut self) -> Result<(), Failed> {
        let shown = self.shown();
        match self.command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failed(format!("`{shown}` ended with {status}"))),
            Err(error) => Err(Failed(format!("run `{shown}`: {error}"))),
        }
    }

    /// Whether it is there and succeeds. Prints nothing.
    pub(crate) fn succeeds(mut self) -> bool {
        let quiet = self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    }

    /// What it prints, if it succeeds.
    pub(crate) fn output(mut self) -> Option<String> {
        let output = self.command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn shown(&self) -> String {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }
}

/// Cargo on this checkout, with the target folder outside of it.
pub(crate) struct Cargo {
    root: PathBuf,
    target: PathBuf,
}

impl Cargo {
    pub(crate) fn new() -> Result<Self, Failed> {
        // As cargo says it now: the binary may have been built from another checkout with the same target folder.
        let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root =
            Path::new(&manifest).ancestors().nth(2).ok_or_else(|| Failed("find the checkout".into()))?.to_owned();
        let target = match env::var_os("TICKHOST_TARGET").or_else(|| env::var_os("CARGO_TARGET_DIR")) {
            Some(target) => PathBuf::from(target),
            None => {
                let home = env::var_os("HOME").ok_or_else(|| Failed("HOME is not set; set TICKHOST_TARGET".into()))?;
                Path::new(&home).join(".cache/tickhost/target")
            }
        };
        Ok(Self { root, target })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Step {
        Step::new("cargo", arguments).env("CARGO_TARGET_DIR", &self.target).dir(&self.root)
    }

    /// A program of the workspace, built before.
    pub(crate) fn program(&self, name: &str) -> Program {
        Program { path: self.target.join("debug").join(name), root: self.root.clone() }
    }

    /// The same, optimised.
    pub(crate) fn released(&self, name: &str) -> Program {
        Program { path: self.target.join("release").join(name), root: self.root.clone() }
    }
}

pub(crate) struct Program {
    path: PathBuf,
    root: PathBuf,
}

impl Program {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn run(self, arguments: &[String]) -> Result<(), Failed> {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Step::new(self.path, &arguments).dir(&self.root).run()
    }
}
