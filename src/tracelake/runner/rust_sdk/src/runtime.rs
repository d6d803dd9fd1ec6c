//! The runtime of a function: an AWS Lambda custom runtime, which fetches events and answers them.
//!
//! A runner gives a process one event; AWS Lambda gives it one after the other, and may freeze the process between them.

use std::error::Error as StdError;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};

use serde_json::{json, Value};

use crate::errors::Error;
use crate::function::FunctionTask;
use crate::http::{HttpAnswer, HttpRequest};
use crate::network::{exchange, open_agent};

const LONGEST_MESSAGE: usize = 10_000;

/// Serves the function until the process ends. Its `main` does nothing else.
///
/// A handler that returns completes its task; an error fails the attempt. [`Error::NonRetryable`], also as a source of
/// another error, fails the task for good. After a panic the process ends: what it left behind must not reach the next task.
pub fn run<E: Into<Box<dyn StdError>>>(handler: impl Fn(&FunctionTask) -> Result<(), E>) -> ! {
    let problem = match std::env::var("AWS_LAMBDA_RUNTIME_API") {
        Ok(place) => match serve(&place, &handler) {
            Ok(end) => end,
            Err(error) => format!("the Runtime API does not answer as expected: {error}"),
        },
        Err(_) => {
            "expected AWS_LAMBDA_RUNTIME_API in the environment: start this program by `trace udf test`, a runner or Lambda"
                .into()
        }
    };
    eprintln!("{problem}");
    std::process::exit(1);
}

/// Returns the reason to end the process.
fn serve<E: Into<Box<dyn StdError>>>(place: &str, handler: &dyn Fn(&FunctionTask) -> Result<(), E>) -> io::Result<String> {
    // The next event may be hours away.
    let agent = open_agent(None, None).map_err(io::Error::other)?;
    let call = |method, path: &str, headers, body: &[u8]| {
        let url = format!("http://{place}/2018-06-01/runtime/invocation/{path}");
        match exchange(&agent, &HttpRequest { method, url: &url, headers, body })? {
            answer if answer.status >= 500 => {
                Err(io::Error::other(format!("received status {}, after which a runtime ends", answer.status)))
            }
            answer => Ok(answer),
        }
    };
    loop {
        let event = call("GET", "next", vec![], b"")?;
        let id = match (event.status, event.header("lambda-runtime-aws-request-id")) {
            (200, Some(id)) => id.to_string(),
            (status, _) => return Err(io::Error::other(format!("expected an event with an id, received status {status}"))),
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| handle(&event, handler)));
        let panic = outcome.as_ref().err().map(|_| "the function panicked; the process ends".to_string());
        let error = match outcome {
            Ok(Ok(report)) => {
                call("POST", &format!("{id}/response"), json_headers(), report.to_string().as_bytes())?;
                continue;
            }
            Ok(Err(error)) => describe(error.as_ref()),
            Err(payload) => {
                let text = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
                report_of("Panic", text.unwrap_or("a panic without a text"), true)
            }
        };
        eprintln!("{}: {}", error["errorType"].as_str().unwrap_or_default(), error["errorMessage"].as_str().unwrap_or_default());
        let mut headers = json_headers();
        headers.push((
            "lambda-runtime-function-error-type",
            format!("Function.{}", error["errorType"].as_str().unwrap_or_default()),
        ));
        call("POST", &format!("{id}/error"), headers, error.to_string().as_bytes())?;
        if let Some(reason) = panic {
            return Ok(reason);
        }
    }
}

fn json_headers() -> Vec<(&'static str, String)> {
    vec![("content-type", "application/json".to_string())]
}

fn handle<E: Into<Box<dyn StdError>>>(
    event: &HttpAnswer,
    handler: &dyn Fn(&FunctionTask) -> Result<(), E>,
) -> Result<Value, Box<dyn StdError>> {
    let content: Value =
        serde_json::from_slice(&event.body).map_err(|error| Error::Argument(format!("expected an event in JSON: {error}")))?;
    let task = FunctionTask::new(&content, |name| std::env::var(name).ok(), None)?;
    handler(&task).map_err(Into::into)?;
    Ok(task.final_report())
}

/// What the Runtime API takes as the end of an invocation that failed.
fn describe(error: &(dyn StdError + 'static)) -> Value {
    let chain = std::iter::successors(Some(error), |error| (*error).source());
    let own: Vec<&Error> = chain.filter_map(|error| error.downcast_ref::<Error>()).collect();
    let is_final = own.iter().any(|error| matches!(error, Error::NonRetryable(_)));
    let name = if is_final { "NonRetryable" } else { own.first().map_or("HandlerError", |error| error.name()) };
    report_of(name, &error.to_string(), !is_final)
}

fn report_of(name: &str, message: &str, retryable: bool) -> Value {
    let text: String = message.chars().take(LONGEST_MESSAGE).collect();
    json!({"errorType": name, "errorMessage": text, "stackTrace": [], "retryable": retryable})
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;

    #[derive(Debug)]
    struct Outer(Error);

    impl fmt::Display for Outer {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(out, "outer")
        }
    }

    impl StdError for Outer {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn an_error_for_good_is_found_below_another() {
        let report = describe(&Outer(Error::NonRetryable("no".into())));
        assert_eq!((&report["errorType"], &report["retryable"]), (&json!("NonRetryable"), &json!(false)));
        let report = describe(&Outer(Error::Argument("no".into())));
        assert_eq!((&report["errorType"], &report["retryable"]), (&json!("ArgumentError"), &json!(true)));
        let report = describe(Box::<dyn StdError>::from("text").as_ref());
        assert_eq!((&report["errorType"], &report["errorMessage"]), (&json!("HandlerError"), &json!("text")));
    }
}
