//! What a host's calls of fsync and fdatasync do, from inside its process: counted, slowed down, or failing. A tracer
//! would slow all of it down, and syncs are paced by time.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const SOURCE: &str = include_str!("syncs.c");
/// Where the numbers lie in the file.
const COUNT: u64 = 0;
const DELAY_US: u64 = 8;
const ERROR: u64 = 16;
/// "Input/output error", as a disk that is broken gives it.
const EIO: u64 = 5;

/// The syncs of one host.
pub struct Syncs {
    library: PathBuf,
    file: PathBuf,
}

impl Syncs {
    /// Builds the library that does it, in a folder of the host's own.
    ///
    /// # Panics
    /// Where it cannot be built.
    pub fn new(dir: &Path) -> Self {
        std::fs::create_dir_all(dir).expect("make a folder");
        let (source, library, file) = (dir.join("syncs.c"), dir.join("syncs.so"), dir.join("syncs"));
        std::fs::write(&source, SOURCE).expect("write the source");
        std::fs::write(&file, [0; 24]).expect("write the numbers");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(&source).status();
        assert!(built.is_ok_and(|status| status.success()), "build it with `cc`");
        Self { library, file }
    }

    /// What the host is run under.
    pub fn under(&self) -> Vec<String> {
        let library = format!("LD_PRELOAD={}", self.library.display());
        vec!["env".into(), library, format!("SYNCS_FILE={}", self.file.display())]
    }

    fn set(&self, at: u64, value: u64) {
        let file = File::options().write(true).open(&self.file).expect("open the numbers");
        file.write_all_at(&value.to_ne_bytes(), at).expect("write a number");
    }

    /// Calls so far.
    ///
    /// # Panics
    /// Where the count is gone.
    pub fn count(&self) -> u64 {
        let mut bytes = [0; 8];
        let file = File::open(&self.file).expect("open the numbers");
        file.read_exact_at(&mut bytes, COUNT).expect("read the count");
        u64::from_ne_bytes(bytes)
    }

    /// Lets each call take that much longer.
    pub fn slow(&self, delay: Duration) {
        self.set(DELAY_US, u64::try_from(delay.as_micros()).unwrap_or(u64::MAX));
    }

    /// Lets each call fail, or succeed again.
    pub fn fail(&self, fails: bool) {
        self.set(ERROR, if fails { EIO } else { 0 });
    }
}
