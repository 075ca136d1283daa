//! Why an expression was refused, and what to write instead.

use std::ops::Range;

use crate::Field;

/// An expression, or a zone name, that is refused.
///
/// The message always says what was found; `span` is where, in bytes of the text that was given, so that a
/// caller can draw a caret under it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}; {help}", self.place())]
pub struct ParseError {
    /// Which expression it is, counted from 0, where there are several.
    pub expression: usize,
    /// The field that is wrong, where it can be told.
    pub field: Option<Field>,
    /// The part of the text that is wrong, in bytes; empty where it is not in the expression.
    pub span: Range<usize>,
    /// What was found and what was expected.
    pub message: String,
    /// What to write instead.
    pub help: String,
}

impl ParseError {
    pub(crate) fn new(
        field: Option<Field>,
        span: Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self { expression: 0, field, span, message: message.into(), help: help.into() }
    }

    fn place(&self) -> String {
        let column = self.span.start + 1;
        match self.field {
            // A zone stands beside the expression, not in it.
            None if self.span.is_empty() => String::new(),
            Some(field) => format!("{field} field, column {column}: "),
            None => format!("column {column}: "),
        }
    }
}
