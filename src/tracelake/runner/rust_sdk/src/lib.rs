//! The SDK of functions of Trace in Rust.
//!
//! ```no_run
//! use serde_json::json;
//! use tracelake_sdk::{run, Error, FunctionTask, Query};
//!
//! fn handle(task: &FunctionTask) -> Result<(), Error> {
//!     let least = task.config["least"].clone();
//!     let rows = task.query(Query::new("SELECT number, miner FROM blocks WHERE gas_used > $gas").bind("gas", least))?;
//!     let alerts: Vec<_> = rows
//!         .iter()
//!         .map(|row| json!({"dedupe_key": row["number"].to_string(), "miner": row["miner"]}))
//!         .collect();
//!     task.publish(&alerts, &["dedupe_key"])?;
//!     Ok(())
//! }
//!
//! fn main() {
//!     run(handle)
//! }
//! ```
//!
//! Returning `Ok` completes the task, and `Err` fails it; [`Error::NonRetryable`] fails it for good. The program is an AWS
//! Lambda custom runtime: build it as `bootstrap`. The recorded vectors in `sdk/vectors` of the repository define what every
//! call sends and returns, for the SDKs of all languages.
//!
//! Every call may be repeated, and the SDK repeats it while nobody answers. A [`FunctionTask`] may be shared between threads.
//! Nothing of one task is kept for the next one.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod calls;
mod encoding;
mod errors;
mod event;
mod function;
mod http;
mod keys;
mod moments;
mod network;
mod query;
mod runtime;
mod storage;

pub use calls::{HeartbeatReply, OutputName, Update};
pub use errors::{Error, Refusal};
pub use event::{Cursor, FunctionInput, FunctionOutput, Unit};
pub use function::FunctionTask;
pub use http::{HttpAnswer, HttpRequest, Services};
pub use query::{Parameter, Query};
pub use runtime::run;

/// A row of a query: its columns in their order.
pub type Row = serde_json::Map<String, serde_json::Value>;
