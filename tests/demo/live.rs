//! Launches as they happen: a table that is redrawn on a terminal, a line for each change elsewhere.

use std::io::{IsTerminal, Write};

/// Rows on a terminal. Arbitrary: a small window shows them with what is said around them.
const ROWS: usize = 12;
/// Columns of a name. A line that wraps would be redrawn in the wrong place.
const NAME: usize = 56;

pub(crate) struct Live {
    rows: Vec<(String, String)>,
    /// Lines of the table that are on the screen and may be written over.
    drawn: usize,
    is_terminal: bool,
}

impl Live {
    pub(crate) fn new() -> Self {
        Self { rows: Vec::new(), drawn: 0, is_terminal: std::io::stdout().is_terminal() }
    }

    /// Takes where launches stand now.
    pub(crate) fn show(&mut self, launches: impl IntoIterator<Item = (String, String)>) {
        let mut changed = false;
        for (name, status) in launches {
            match self.rows.iter_mut().find(|row| row.0 == name) {
                Some(row) if row.1 == status => continue,
                Some(row) => row.1.clone_from(&status),
                None => self.rows.push((name.clone(), status.clone())),
            }
            changed = true;
            if !self.is_terminal {
                println!("{}", line(&name, &status));
            }
        }
        if changed && self.is_terminal {
            self.draw();
        }
    }

    /// Leaves the table as it is; what is said next stands below it.
    pub(crate) fn leave(&mut self) {
        self.drawn = 0;
    }

    fn draw(&mut self) {
        let mut out = String::new();
        if self.drawn > 0 {
            out.push_str(&format!("\x1b[{}A", self.drawn));
        }
        let from = self.rows.len().saturating_sub(ROWS);
        for (name, status) in &self.rows[from..] {
            let colour = match status.as_str() {
                "succeeded" => 32,
                "lost" | "unknown" | "failed" => 31,
                status if status.starts_with("skipped") => 33,
                _ => 36,
            };
            // The line is cleared first: the one that stood there may have been longer.
            out.push_str(&format!("\x1b[2K\x1b[{colour}m{}\x1b[0m\n", line(name, status)));
        }
        self.drawn = self.rows.len() - from;
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(out.as_bytes()).and_then(|()| stdout.flush());
    }
}

fn line(name: &str, status: &str) -> String {
    let short: String = name.chars().take(NAME).collect();
    format!("{short:<NAME$} {status}")
}
