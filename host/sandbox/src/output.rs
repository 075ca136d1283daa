//! What a run writes: standard output, standard error and log records, as lines. Head and tail are kept, the
//! middle is dropped and counted.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use serde::{Deserialize, Serialize};
use wasmtime_wasi::{
    cli::{IsTerminal, StdoutStream},
    p2::{OutputStream, Pollable, StreamResult},
};

/// A longer line is cut in two: one record must not push out all others.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Where a line comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// `tickhost:job/logging`.
    Log,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Counts from 0, dropped lines included.
    pub number: u64,
    /// Where it comes from.
    pub stream: Stream,
    /// The text, without its end of line.
    pub text: String,
}

/// What is kept of a run's output.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OutputText {
    /// In the order in which they were written.
    pub lines: Vec<Line>,
    /// Bytes between head and tail that were not kept.
    pub dropped_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Lines that are ended: those from this number on may still grow while the run lives.
    pub ended: u64,
}

/// Takes a run's output while it runs. Clones share it.
#[derive(Debug, Clone)]
pub struct Output(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    limit: usize,
    head: Vec<Line>,
    head_bytes: usize,
    tail: VecDeque<Line>,
    tail_bytes: usize,
    partial: [Vec<u8>; 2],
    dropped_bytes: u64,
    total_bytes: u64,
    number: u64,
}

impl Output {
    /// Keeps up to `limit` bytes: the first half and the last half.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            head: Vec::new(),
            head_bytes: 0,
            tail: VecDeque::new(),
            tail_bytes: 0,
            partial: [Vec::new(), Vec::new()],
            dropped_bytes: 0,
            total_bytes: 0,
            number: 0,
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a record. It stays one line: control characters are escaped.
    pub(crate) fn record(&self, text: &str) {
        self.inner().line(Stream::Log, text);
    }

    /// What is there so far. A line that is not ended yet counts as one.
    pub fn text(&self) -> OutputText {
        let inner = self.inner();
        let mut lines: Vec<Line> = inner.head.iter().chain(&inner.tail).cloned().collect();
        let mut number = inner.number;
        for (partial, stream) in inner.partial.iter().zip([Stream::Stdout, Stream::Stderr]) {
            if !partial.is_empty() {
                lines.push(Line { number, stream, text: printable(&String::from_utf8_lossy(partial)) });
                number += 1;
            }
        }
        OutputText { lines, dropped_bytes: inner.dropped_bytes, total_bytes: inner.total_bytes, ended: inner.number }
    }

    /// Bytes in all, kept or not.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.inner().total_bytes
    }

    pub(crate) fn capture(&self, stream: Stream) -> Capture {
        Capture { output: self.clone(), stream }
    }
}

impl Inner {
    fn write(&mut self, stream: Stream, mut bytes: &[u8]) {
        self.total_bytes += bytes.len() as u64;
        let slot = usize::from(stream == Stream::Stderr);
        while !bytes.is_empty() {
            let room = LINE_BYTES_MAX - self.partial[slot].len();
            let end = bytes.iter().take(room).position(|b| *b == b'\n');
            let take = end.unwrap_or(room.min(bytes.len()));
            self.partial[slot].extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if end.is_some() {
                bytes = &bytes[1..];
            }
            if end.is_some() || self.partial[slot].len() >= LINE_BYTES_MAX {
                let line = std::mem::take(&mut self.partial[slot]);
                self.keep(stream, &String::from_utf8_lossy(&line));
            }
        }
    }

    fn line(&mut self, stream: Stream, text: &str) {
        self.total_bytes += text.len() as u64 + 1;
        self.keep(stream, text);
    }

    fn keep(&mut self, stream: Stream, text: &str) {
        let mut text = printable(text);
        if text.len() > LINE_BYTES_MAX {
            let cut = text.floor_char_boundary(LINE_BYTES_MAX);
            let rest = text.len() - cut;
            text.truncate(cut);
            text.push_str(&format!("… {rest} bytes dropped"));
            self.dropped_bytes += rest as u64;
        }
        let line = Line { number: self.number, stream, text };
        self.number += 1;
        let size = line.text.len() + 1;
        if self.tail.is_empty() && self.head_bytes + size <= self.limit / 2 {
            self.head_bytes += size;
            self.head.push(line);
            return;
        }
        self.tail_bytes += size;
        self.tail.push_back(line);
        while self.tail_bytes > self.limit - self.limit / 2 {
            let Some(dropped) = self.tail.pop_front() else { break };
            self.tail_bytes -= dropped.text.len() + 1;
            self.dropped_bytes += dropped.text.len() as u64 + 1;
        }
    }
}

/// A guest cannot forge a line of the host's, nor move a terminal's cursor.
fn printable(text: &str) -> String {
    if !text.chars().any(|c| c.is_control() && c != '\t') {
        return text.to_owned();
    }
    text.chars()
        .flat_map(|c| -> Box<dyn Iterator<Item = char>> {
            if c.is_control() && c != '\t' { Box::new(c.escape_default()) } else { Box::new(std::iter::once(c)) }
        })
        .collect()
}

/// One of the guest's standard streams.
#[derive(Clone)]
pub(crate) struct Capture {
    output: Output,
    stream: Stream,
}

impl Capture {
    fn write_bytes(&self, bytes: &[u8]) {
        self.output.inner().write(self.stream, bytes);
    }
}

impl IsTerminal for Capture {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Capture {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Capture {
    async fn ready(&mut self) {}
}

impl OutputStream for Capture {
    fn write(&mut self, bytes: bytes::Bytes) -> StreamResult<()> {
        self.write_bytes(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 << 10)
    }
}

impl tokio::io::AsyncWrite for Capture {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.write_bytes(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(output: &Output) -> Vec<String> {
        output.text().lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn head_and_tail_stay_and_the_middle_is_counted() {
        let output = Output::new(40);
        let capture = output.capture(Stream::Stdout);
        for n in 0..1_000 {
            capture.write_bytes(format!("line {n:03}\n").as_bytes());
        }
        assert_eq!(texts(&output), ["line 000", "line 001", "line 998", "line 999"]);
        let text = output.text();
        assert_eq!((text.dropped_bytes, text.total_bytes), (996 * 9, 9_000));
    }

    #[test]
    fn a_line_without_an_end_is_there() {
        let output = Output::new(1_000);
        output.capture(Stream::Stderr).write_bytes(b"whole\npartial");
        assert_eq!(texts(&output), ["whole", "partial"]);
    }

    #[test]
    fn a_record_stays_one_line_and_cannot_imitate_another() {
        let output = Output::new(100_000);
        output.record("all well\nERROR forged \u{1b}[2J");
        assert_eq!(texts(&output), ["all well\\nERROR forged \\u{1b}[2J"]);
        output.record(&"x".repeat(50_000));
        assert_eq!(texts(&output)[1].len(), LINE_BYTES_MAX + "… 41808 bytes dropped".len());
    }

    #[test]
    fn a_line_without_end_is_cut_and_memory_stays_flat() {
        let output = Output::new(64 << 10);
        let capture = output.capture(Stream::Stdout);
        for _ in 0..1_000 {
            capture.write_bytes(&[b'x'; 4_096]);
        }
        let text = output.text();
        let kept: usize = text.lines.iter().map(|line| line.text.len()).sum();
        assert!(kept <= (64 << 10) + LINE_BYTES_MAX, "{kept}");
        assert_eq!(text.total_bytes, 4_096_000);
    }
}
