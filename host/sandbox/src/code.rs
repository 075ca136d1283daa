//! Components and the code compiled from them, by digest.
//!
//! Compiled code is this host's own and is never accepted from anybody: mapping it means running it. A file's
//! name carries the component's digest, the engine's version and configuration, and the digest of the file
//! itself, which is checked before it is mapped; anything else is compiled anew.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    sync::{Arc, PoisonError},
};

use tickhost_ledger::Digest;
use wasmtime::component::Component;

use crate::{
    bindings::Pre,
    engine::Sandbox,
    inspect::{ComponentReport, RefusedComponent, initial_memory},
};

/// A component cannot be made ready.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// It is not on this node.
    #[error("component {digest} is not on this node: read `{path}`: {source}")]
    Missing {
        /// The component.
        digest: Digest,
        /// Where it should be.
        path: PathBuf,
        /// Why it could not be read.
        source: std::io::Error,
    },
    /// Its bytes were not what its name says. They are set aside.
    #[error(
        "`{path}` had the digest {found}, its name says {digest}; it is set aside as `.damaged`, and had again from \
         another node; where there is none, store the component again"
    )]
    Damaged {
        /// The component.
        digest: Digest,
        /// The file.
        path: PathBuf,
        /// What is in it.
        found: Digest,
    },
    /// wasmtime refuses it.
    #[error("compile component {digest}: {why}")]
    Compile {
        /// The component.
        digest: Digest,
        /// Why.
        why: String,
    },
    /// It cannot be written.
    #[error("write `{path}`: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// A component is not admitted.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// It cannot run here.
    #[error(transparent)]
    Refused(#[from] RefusedComponent),
    /// It cannot be kept or read.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// It needs more memory than its job declares.
    #[error(
        "component {digest} begins with {needs} bytes of memory; the job declares `memory = {limit}`; declare more"
    )]
    Memory {
        /// The component.
        digest: Digest,
        /// Bytes it begins with.
        needs: u64,
        /// Bytes declared.
        limit: u64,
    },
}

impl Sandbox {
    fn component_path(&self, digest: &Digest) -> PathBuf {
        self.dir.join("components").join(format!("{}.wasm", digest.hex()))
    }

    /// Whether a component's bytes are on this node.
    pub fn has_component(&self, digest: &Digest) -> bool {
        self.component_path(digest).exists()
    }

    /// The components whose code is ready to run.
    pub fn warm(&self) -> BTreeSet<Digest> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.iter().filter(|(_, cell)| cell.initialized()).map(|(digest, _)| *digest).collect()
    }

    /// Keeps a component that another node has admitted, synced.
    ///
    /// # Errors
    /// A file system that refuses.
    pub fn keep(&self, bytes: &[u8]) -> Result<Digest, CodeError> {
        let digest = Digest::of(bytes);
        let path = self.component_path(&digest);
        if !path.exists() {
            write_whole(&path, bytes).map_err(|source| CodeError::Write { path, source })?;
        }
        Ok(digest)
    }

    /// Checks a component, and keeps its bytes and its code, synced. Takes seconds for JavaScript and Python.
    ///
    /// # Errors
    /// Everything that keeps it from running; a file system that refuses, with nothing left behind.
    pub fn admit(&self, bytes: &[u8]) -> Result<ComponentReport, AdmitError> {
        let (report, component) = self.compile_checked(bytes)?;
        let digest = self.keep(bytes)?;
        if self.mapped(&digest).is_none() {
            self.keep_code(&digest, &component)?;
        }
        Ok(report)
    }

    /// Checks that a component can begin with this much memory.
    ///
    /// # Errors
    /// A component that is not here, or that needs more.
    pub async fn check_memory(self: &Arc<Self>, digest: Digest, limit: u64) -> Result<(), AdmitError> {
        let pre = self.ready(digest).await?;
        match initial_memory(pre.component()) {
            Some(needs) if needs > limit => Err(AdmitError::Memory { digest, needs, limit }),
            _ => Ok(()),
        }
    }

    /// A component's bytes, checked against their digest. Damaged ones are set aside, so that good ones can be kept.
    ///
    /// # Errors
    /// Where they are not here, or damaged.
    pub fn component_bytes(&self, digest: &Digest) -> Result<Vec<u8>, CodeError> {
        let path = self.component_path(digest);
        match std::fs::read(&path) {
            Ok(bytes) if Digest::of(&bytes) == *digest => Ok(bytes),
            Ok(bytes) => {
                let error = CodeError::Damaged { digest: *digest, path: path.clone(), found: Digest::of(&bytes) };
                tracing::error!(%error, "read a component");
                std::fs::rename(&path, path.with_extension("damaged"))
                    .map_err(|source| CodeError::Write { path, source })?;
                Err(error)
            }
            Err(source) => Err(CodeError::Missing { digest: *digest, path, source }),
        }
    }

    pub(crate) async fn ready(self: &Arc<Self>, digest: Digest) -> Result<Pre, CodeError> {
        let cell = {
            let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
            ready.entry(digest).or_default().clone()
        };
        let sandbox = self.clone();
        let load = || async move {
            let work = move || sandbox.load(&digest);
            let why = |e: tokio::task::JoinError| CodeError::Compile { digest, why: e.to_string() };
            tokio::task::spawn_blocking(work).await.map_err(why)?
        };
        cell.get_or_try_init(load).await.cloned()
    }

    fn load(&self, digest: &Digest) -> Result<Pre, CodeError> {
        let refused = |e: wasmtime::Error| CodeError::Compile { digest: *digest, why: format!("{e:#}") };
        let component = match self.mapped(digest) {
            Some(component) => component,
            None => self.compile(digest)?,
        };
        let pre = self.linker.instantiate_pre(&component).map_err(refused)?;
        Pre::new(pre).map_err(refused)
    }

    fn compile(&self, digest: &Digest) -> Result<Component, CodeError> {
        let bytes = self.component_bytes(digest)?;
        let component = Component::from_binary(&self.engine, &bytes)
            .map_err(|e| CodeError::Compile { digest: *digest, why: format!("{e:#}") })?;
        self.keep_code(digest, &component)?;
        Ok(component)
    }

    fn keep_code(&self, digest: &Digest, component: &Component) -> Result<(), CodeError> {
        let code = component.serialize().map_err(|e| CodeError::Compile { digest: *digest, why: format!("{e:#}") })?;
        let name = format!("{}{}.cwasm", self.code_prefix(digest), Digest::of(&code).hex());
        let path = self.dir.join("code").join(name);
        write_whole(&path, &code).map_err(|source| CodeError::Write { path, source })
    }

    fn code_prefix(&self, digest: &Digest) -> String {
        let mut hasher = DefaultHasher::new();
        self.engine.precompile_compatibility_hash().hash(&mut hasher);
        format!("{}-{:016x}-", digest.hex(), hasher.finish())
    }

    /// Maps compiled code whose digest is what its name says. Whatever is wrong with a file, the answer is to
    /// compile again.
    fn mapped(&self, digest: &Digest) -> Option<Component> {
        let prefix = self.code_prefix(digest);
        for file in std::fs::read_dir(self.dir.join("code")).ok()? {
            let path = file.ok()?.path();
            let Some(sum) = path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".cwasm"))
            else {
                continue;
            };
            let intact = std::fs::read(&path).is_ok_and(|code| Digest::of(&code).hex() == sum);
            if !intact {
                tracing::warn!(path = %path.display(), "compiled code is damaged; it is removed and compiled again");
                let _ = std::fs::remove_file(&path);
                continue;
            }
            return map(&self.engine, &path);
        }
        None
    }
}

/// SAFETY of the call inside: the file was written by this host's own compiler, its digest is in its name and was
/// checked just now, and nobody else may write to the data directory.
#[allow(unsafe_code, reason = "wasmtime maps compiled code only through an unsafe function")]
fn map(engine: &wasmtime::Engine, path: &std::path::Path) -> Option<Component> {
    unsafe { Component::deserialize_file(engine, path) }.ok()
}

/// Writes a file under another name, syncs it, and gives it its name: it is there whole or not at all.
fn write_whole(path: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let temporary = path.with_extension(format!("{}.part", uuid::Uuid::new_v4().simple()));
    let written = std::fs::File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |dir| std::fs::File::open(dir)?.sync_all())
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}
