//! A function that performs the calls which its config lists. Tests run it in sandboxes, and the SDK's vectors with it.
//!
//! `bootstrap` is the function, a Lambda custom runtime; `bootstrap vectors DIRECTORY` runs the recorded vectors;
//! `bootstrap sources` prints the SHA-256 of the sources that it was built from.

mod performance;
mod vectors;

use std::path::Path;
use std::process::ExitCode;

use serde_json::{json, Value};
use tracelake_sdk::{run, Error, FunctionTask};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match names[..] {
        [] => run(handle),
        ["vectors", directory] => {
            let (count, problems) = vectors::run_all(Path::new(directory));
            problems.iter().for_each(|problem| println!("{problem}"));
            println!("{count} vectors, {} failures", problems.len());
            ExitCode::from(u8::from(!problems.is_empty()))
        }
        ["sources"] => {
            println!("{}", option_env!("TRACE_SDK_SOURCES").unwrap_or("unknown"));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("expected no arguments, `vectors DIRECTORY` or `sources`");
            ExitCode::from(2)
        }
    }
}

/// Performs `config.steps`: each has a `call` and its `arguments`, by name, as in the vectors. What a call returns is logged.
fn handle(task: &FunctionTask) -> Result<(), Error> {
    for step in task.config["steps"].as_array().into_iter().flatten() {
        let name = step["call"].as_str().unwrap_or_default();
        let result = perform(task, name, &step["arguments"])?;
        task.log_with("info", name, json!({"result": result}));
    }
    Ok(())
}

fn perform(task: &FunctionTask, name: &str, arguments: &Value) -> Result<Value, Error> {
    let text = arguments["text"].as_str().unwrap_or_default().to_string();
    match name {
        "fail" => Err(Error::Argument(text)),
        "fail_for_good" => Err(Error::NonRetryable(text)),
        "panic" => panic!("{text}"),
        "print" => {
            println!("{text}");
            Ok(Value::Null)
        }
        "take_memory" => {
            let mut taken: Vec<Vec<u8>> = Vec::new();
            loop {
                taken.push(vec![1; 1 << 20]);
            }
        }
        // Queries, and publishes the rows under a key that is a column of them.
        "copy" => {
            let rows = performance::perform(task, "query", arguments)?;
            let mut publication = arguments.as_object().cloned().unwrap_or_default();
            publication.insert("rows".into(), rows);
            performance::perform(task, "publish", &Value::Object(publication))
        }
        _ => performance::perform(task, name, arguments),
    }
}
