//! Counts a host's calls of fsync and fdatasync from inside its process: a tracer would slow it down, and syncs
//! are paced by time.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

const SOURCE: &str = include_str!("syncs.c");

pub(super) struct SyncCounter {
    library: PathBuf,
    file: PathBuf,
}

impl SyncCounter {
    /// Builds the library that counts.
    pub(super) fn new(dir: &Path) -> Self {
        let (source, library, file) = (dir.join("syncs.c"), dir.join("syncs.so"), dir.join("syncs"));
        std::fs::write(&source, SOURCE).expect("write the source");
        std::fs::write(&file, 0_u64.to_ne_bytes()).expect("write the count");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(&source).status();
        assert!(built.is_ok_and(|status| status.success()), "build the counter with `cc`");
        Self { library, file }
    }

    /// What a host is run under.
    pub(super) fn under(&self) -> Vec<String> {
        let library = format!("LD_PRELOAD={}", self.library.display());
        vec!["env".into(), library, format!("SYNCS_FILE={}", self.file.display())]
    }

    /// Calls so far.
    pub(super) fn count(&self) -> u64 {
        let bytes = std::fs::read(&self.file).expect("read the count");
        u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    }
}
