//! What a call can fail with. What a handler returns fails the attempt, which is then retried.

use std::fmt;
use std::io;

use serde_json::{Map, Value};

/// An error of the SDK, or of the function itself (`NonRetryable`).
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Return it to fail the task for good: another attempt would fail in the same way.
    NonRetryable(String),
    /// A call has arguments that it cannot take.
    Argument(String),
    /// A key would be another one in the next attempt, so the rows of a retried task would be there twice.
    UnstableKey(String),
    /// A call was refused.
    Call(Box<Refusal>),
    /// The attempt is no longer current: stop. Nothing that it does counts any more.
    Fenced(Box<Refusal>),
    /// A query has more rows than a reply holds. The whole result is a Parquet file at `output_location`.
    ResultTooLarge {
        /// How many rows the result has.
        row_count: u64,
        /// The address of the Parquet file.
        output_location: Option<String>,
    },
    /// Nobody answered, however often the call was repeated.
    Network(io::Error),
    /// A reply is not what the platform sends.
    Reply(String),
}

/// Why a call was refused. `code` is stable; docs/reference/errors.md lists the codes.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The status of the reply.
    pub status: u16,
    /// The stable code.
    pub code: String,
    /// For people.
    pub message: String,
    /// Facts about this refusal.
    pub details: Map<String, Value>,
}

impl Error {
    /// The name that the SDKs of all languages share; the runner knows `NonRetryable` by it.
    pub fn name(&self) -> &'static str {
        match self {
            Error::NonRetryable(_) => "NonRetryable",
            Error::Argument(_) => "ArgumentError",
            Error::UnstableKey(_) => "UnstableKeyError",
            Error::Call(_) => "CallError",
            Error::Fenced(_) => "FencedError",
            Error::ResultTooLarge { .. } => "ResultTooLargeError",
            Error::Network(_) => "NetworkError",
            Error::Reply(_) => "ReplyError",
        }
    }

    /// Why the platform or the object store refused the call, if it did.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Error::Call(refusal) | Error::Fenced(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NonRetryable(text) | Error::Argument(text) | Error::UnstableKey(text) | Error::Reply(text) => out.write_str(text),
            Error::Call(refusal) | Error::Fenced(refusal) => write!(out, "{}: {}", refusal.code, refusal.message),
            Error::ResultTooLarge { row_count, .. } => write!(
                out,
                "expected a result that fits into a reply, received {row_count} rows: add a limit, aggregate in SQL, or `get` the \
                 Parquet file at `output_location`"
            ),
            Error::Network(error) => write!(out, "no answer: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Network(error) => Some(error),
            _ => None,
        }
    }
}

impl Error {
    /// A call that was refused: fenced, if the attempt is no longer current.
    pub(crate) fn refused(status: u16, code: &str, message: String, details: Map<String, Value>) -> Error {
        let refusal = Box::new(Refusal { status, code: code.to_string(), message, details });
        if status == 409 {
            Error::Fenced(refusal)
        } else {
            Error::Call(refusal)
        }
    }

    /// A call of the platform that was answered with another status than 200.
    pub(crate) fn from_reply(status: u16, body: &[u8]) -> Error {
        let reply: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let error = &reply["error"];
        match (error["code"].as_str(), error["message"].as_str()) {
            (Some(code), Some(message)) => {
                let details = error["details"].as_object().cloned().unwrap_or_default();
                Error::refused(status, code, message.to_string(), details)
            }
            _ => Error::refused(status, "unknown", format!("the call was answered with status {status}"), Map::new()),
        }
    }
}
