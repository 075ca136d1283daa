//! What a host needs of whatever runs components.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use futures::future::BoxFuture;
use tickhost_ledger::Digest;

use crate::{
    code::{AdmitError, CodeError},
    engine::Sandbox,
    inspect::ComponentReport,
    journal::Journal,
    output::Output,
    run::{RunReport, RunRequest},
};

/// Keeps components and runs them. Every host has a [`Sandbox`]; the simulation of whole nodes has guests of its own.
pub trait Runner: Send + Sync + 'static {
    /// Runs a component for a tick and says how it ended. Dropping the future, or `stop` becoming ready with a reason,
    /// ends the run at once.
    fn run<'a>(
        &'a self,
        request: RunRequest,
        journal: Arc<dyn Journal>,
        output: Output,
        stop: BoxFuture<'a, String>,
    ) -> BoxFuture<'a, RunReport>;

    /// Makes a component's code ready to run.
    ///
    /// # Errors
    /// A component that is not here, or that wasmtime refuses.
    fn prepare(&self, component: Digest) -> BoxFuture<'_, Result<(), CodeError>>;

    /// The components whose code is ready to run.
    fn warm(&self) -> BTreeSet<Digest>;

    /// Bytes of linear memory that all runs use at this moment.
    fn memory_used(&self) -> u64;

    /// Whether a component's bytes are on this node.
    fn has_component(&self, component: &Digest) -> bool;

    /// Keeps a component that another node has admitted, synced.
    ///
    /// # Errors
    /// A file system that refuses.
    fn keep(&self, bytes: Bytes) -> BoxFuture<'_, Result<Digest, CodeError>>;

    /// A component's bytes, checked against their digest.
    ///
    /// # Errors
    /// Where they are not here, or damaged.
    fn component_bytes(&self, component: Digest) -> BoxFuture<'_, Result<Vec<u8>, CodeError>>;

    /// Checks a component, and keeps its bytes and its code, synced. Takes seconds for JavaScript and Python.
    ///
    /// # Errors
    /// Everything that keeps it from running; a file system that refuses, with nothing left behind.
    fn admit(&self, bytes: Bytes) -> BoxFuture<'_, Result<ComponentReport, AdmitError>>;

    /// Checks that a component can begin with this much memory.
    ///
    /// # Errors
    /// A component that is not here, or that needs more.
    fn check_memory(&self, component: Digest, limit: u64) -> BoxFuture<'_, Result<(), AdmitError>>;
}

/// Work that takes long, on a thread of its own.
async fn off_thread<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // It was not cancelled: nothing here does that.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

impl Runner for Arc<Sandbox> {
    fn run<'a>(
        &'a self,
        request: RunRequest,
        journal: Arc<dyn Journal>,
        output: Output,
        stop: BoxFuture<'a, String>,
    ) -> BoxFuture<'a, RunReport> {
        Box::pin(Sandbox::run(self, request, journal, output, stop))
    }

    fn prepare(&self, component: Digest) -> BoxFuture<'_, Result<(), CodeError>> {
        Box::pin(async move { self.ready(component).await.map(|_| ()) })
    }

    fn warm(&self) -> BTreeSet<Digest> {
        Sandbox::warm(self)
    }

    fn memory_used(&self) -> u64 {
        Sandbox::memory_used(self)
    }

    fn has_component(&self, component: &Digest) -> bool {
        Sandbox::has_component(self, component)
    }

    fn keep(&self, bytes: Bytes) -> BoxFuture<'_, Result<Digest, CodeError>> {
        let sandbox = self.clone();
        Box::pin(off_thread(move || Sandbox::keep(&sandbox, &bytes)))
    }

    fn component_bytes(&self, component: Digest) -> BoxFuture<'_, Result<Vec<u8>, CodeError>> {
        let sandbox = self.clone();
        Box::pin(off_thread(move || Sandbox::component_bytes(&sandbox, &component)))
    }

    fn admit(&self, bytes: Bytes) -> BoxFuture<'_, Result<ComponentReport, AdmitError>> {
        let sandbox = self.clone();
        Box::pin(off_thread(move || Sandbox::admit(&sandbox, &bytes)))
    }

    fn check_memory(&self, component: Digest, limit: u64) -> BoxFuture<'_, Result<(), AdmitError>> {
        Box::pin(Sandbox::check_memory(self, component, limit))
    }
}
