//! What a run uses: memory over all its memories, and CPU time by the thread's own clock.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use rustix::time::{ClockId, clock_gettime};
use wasmtime::ResourceLimiter;

/// Linear memory over all runs of a node. What runs declare may be more than there is; what they really use is not.
#[derive(Debug)]
pub(crate) struct Pool {
    used: AtomicU64,
    most: u64,
}

impl Pool {
    pub(crate) fn new(most: u64) -> Self {
        Self { used: AtomicU64::new(0), most }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.most);
        self.used.fetch_update(Relaxed, Relaxed, more).is_ok()
    }
}

/// Linear memory over all memories of a run; wasmtime asks for each one alone.
#[derive(Debug)]
pub(crate) struct Memory {
    pool: Arc<Pool>,
    /// The node had no more for the last growth that was refused.
    pub(crate) is_node_full: bool,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) peak: u64,
    /// The last growth that was refused, in bytes wanted. A guest that cannot grow merely aborts; this says why.
    pub(crate) refused: Option<u64>,
    /// Elements over all tables of a run.
    pub(crate) tables: Tables,
}

/// Elements over all tables of a run.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    limit: u64,
    pub(crate) used: u64,
    /// The last growth that was refused, in elements wanted.
    pub(crate) refused: Option<u64>,
}

impl Memory {
    pub(crate) fn new(pool: Arc<Pool>, limit: u64, table_elements: u64) -> Self {
        let tables = Tables { limit: table_elements, ..Tables::default() };
        Self { pool, is_node_full: false, limit, used: 0, peak: 0, refused: None, tables }
    }

    /// What all runs of the node use and may use, in bytes.
    pub(crate) fn of_the_node(&self) -> (u64, u64) {
        (self.pool.used(), self.pool.most())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.pool.used.fetch_sub(self.used, Relaxed);
    }
}

impl ResourceLimiter for Memory {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let wanted = self.used + (desired - current) as u64;
        let is_over = wanted > self.limit;
        if is_over || !self.pool.take((desired - current) as u64) {
            self.refused = Some(wanted);
            self.is_node_full = !is_over;
            return Ok(false);
        }
        self.used = wanted;
        self.peak = self.peak.max(wanted);
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let wanted = self.tables.used + (desired - current) as u64;
        if wanted > self.tables.limit {
            self.tables.refused = Some(wanted);
            return Ok(false);
        }
        self.tables.used = wanted;
        Ok(true)
    }
}

/// CPU time of a run, whatever threads it is polled on. Waiting for the host is not charged.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    used_ns: AtomicU64,
    poll_began_ns: AtomicU64,
}

impl Cpu {
    /// Nanoseconds used by polls that are over.
    pub(crate) fn used_ns(&self) -> u64 {
        self.used_ns.load(Relaxed)
    }

    /// Nanoseconds used, the poll that is under way on this thread included.
    pub(crate) fn used_ns_now(&self) -> u64 {
        self.used_ns() + thread_ns().saturating_sub(self.poll_began_ns.load(Relaxed))
    }
}

fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Charges the CPU time of each poll.
pub(crate) struct Metered<F> {
    inner: Pin<Box<F>>,
    cpu: Arc<Cpu>,
}

impl<F: Future> Metered<F> {
    pub(crate) fn new(inner: F, cpu: Arc<Cpu>) -> Self {
        Self { inner: Box::pin(inner), cpu }
    }
}

impl<F: Future> Future for Metered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let began = thread_ns();
        self.cpu.poll_began_ns.store(began, Relaxed);
        let poll = self.inner.as_mut().poll(cx);
        self.cpu.used_ns.fetch_add(thread_ns().saturating_sub(began), Relaxed);
        poll
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// wasmtime asks for each memory alone; the limit is for their sum.
    #[test]
    fn the_limit_is_for_the_sum_of_all_memories() {
        let mut memory = Memory::new(Arc::new(Pool::new(1_000)), 100, 0);
        assert!(memory.memory_growing(0, 60, None).unwrap(), "a first memory");
        assert!(!memory.memory_growing(0, 60, None).unwrap(), "a second one that fits alone");
        assert_eq!(memory.refused, Some(120));
        assert!(memory.memory_growing(0, 40, None).unwrap());
        assert!(!memory.memory_growing(60, 61, None).unwrap());
        assert_eq!((memory.used, memory.peak), (100, 100));
    }

    /// Two runs that declare more together than there is: the second is refused what the first one has, and gets it once
    /// that has ended.
    #[test]
    fn runs_share_what_the_node_has() {
        let pool = Arc::new(Pool::new(150));
        let run = || Memory::new(pool.clone(), 100, 0);
        let (mut first, mut second) = (run(), run());
        assert!(first.memory_growing(0, 100, None).unwrap() && second.memory_growing(0, 50, None).unwrap());
        assert!(!second.memory_growing(50, 51, None).unwrap());
        assert!(second.is_node_full && second.of_the_node() == (150, 150));
        assert!(!second.memory_growing(50, 101, None).unwrap() && !second.is_node_full, "this one is its own limit");
        drop(first);
        assert!(second.memory_growing(50, 100, None).unwrap());
        drop(second);
        assert_eq!(pool.used(), 0);
    }
}
