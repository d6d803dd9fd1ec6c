//! Runs the vectors that the SDKs of all languages share.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{json, Map, Value};
use tracelake_sdk::{Error, FunctionTask, HttpAnswer, HttpRequest, Services};

use super::performance::{decode, perform};

const SHARED: &str = "task.json";

/// Answers requests in the order of the vector, and keeps what was asked.
#[derive(Default)]
struct Recording {
    now: f64,
    replies: VecDeque<Value>,
    exchanges: Vec<Value>,
    log: String,
}

#[derive(Default)]
struct RecordedServices(Arc<Mutex<Recording>>);

impl Services for RecordedServices {
    fn exchange(&self, request: &HttpRequest) -> io::Result<HttpAnswer> {
        let mut recording = self.0.lock().unwrap();
        let headers: Map<String, Value> = request.headers.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
        let body = String::from_utf8_lossy(request.body);
        let asked = json!({"method": request.method, "url": request.url, "headers": headers, "body": body});
        let reply = recording.replies.pop_front();
        recording.exchanges.push(json!({"request": asked, "reply": reply}));
        let reply = reply.unwrap_or_else(|| panic!("a request that the vector does not have: {asked}"));
        if reply.is_null() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let body = match &reply["body"] {
            Value::Null => Vec::new(),
            Value::Object(fields) if !(fields.len() == 1 && fields.contains_key("base64")) => {
                reply["body"].to_string().into_bytes()
            }
            text => decode(text),
        };
        let headers = reply["headers"].as_object().into_iter().flatten();
        let headers = headers.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_string())).collect();
        Ok(HttpAnswer { status: reply["status"].as_u64().unwrap() as u16, headers, body })
    }

    fn now(&self) -> f64 {
        self.0.lock().unwrap().now
    }

    fn sleep(&self, _wait: Duration) {}

    fn write_log(&self, line: &str) {
        self.0.lock().unwrap().log += line;
    }
}

/// The number of vectors, and a text for each step that differs.
pub fn run_all(directory: &Path) -> (usize, Vec<String>) {
    let shared = read(&directory.join(SHARED));
    let entries = fs::read_dir(directory).expect("a directory of vectors").map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "json") && !path.ends_with(SHARED)).collect();
    files.sort();
    let problems =
        files.iter().flat_map(|path| run(&shared, &read(path)).into_iter().map(|text| format!("{}, {text}", path.display())));
    (files.len(), problems.collect())
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a vector")).expect("JSON")
}

fn run(shared: &Value, vector: &Value) -> Vec<String> {
    let mut event = shared["event"].as_object().unwrap().clone();
    event.extend(vector["event"].as_object().cloned().unwrap_or_default());
    let recording = Arc::new(Mutex::new(Recording { now: vector["now"].as_f64().unwrap(), ..Recording::default() }));
    let environment = |name: &str| {
        let value = vector["environment"].get(name).unwrap_or(&shared["environment"][name]);
        value.as_str().map(str::to_string)
    };
    let services = Box::new(RecordedServices(recording.clone()));
    let task = FunctionTask::new(&event.into(), environment, Some(services)).expect("a task");
    let mut problems = Vec::new();
    for (index, step) in vector["steps"].as_array().unwrap().iter().enumerate() {
        let performed = run_step(&task, &recording, step);
        if performed != *step {
            problems.push(format!("step {index}\n  got      {performed}\n  expected {step}"));
        }
    }
    problems
}

fn run_step(task: &FunctionTask, recording: &Mutex<Recording>, step: &Value) -> Value {
    let exchanges = step["exchanges"].as_array().cloned().unwrap_or_default();
    {
        let mut recording = recording.lock().unwrap();
        let now = step["now"].as_f64().unwrap_or(recording.now);
        let replies = exchanges.iter().map(|item| item["reply"].clone()).collect();
        *recording = Recording { now, replies, ..Recording::default() };
    }
    let kept = ["now", "call", "arguments"].into_iter().filter_map(|name| Some((name.to_string(), step.get(name)?.clone())));
    let mut performed: Map<String, Value> = kept.collect();
    match perform(task, step["call"].as_str().unwrap(), &step["arguments"]) {
        Ok(result) => performed.insert("result".into(), result),
        Err(error) => performed.insert("error".into(), describe(&error)),
    };
    let recording = recording.lock().unwrap();
    if !recording.log.is_empty() {
        performed.insert("stderr".into(), json!(recording.log));
    }
    if !recording.exchanges.is_empty() {
        performed.insert("exchanges".into(), json!(recording.exchanges));
    }
    performed.into()
}

fn describe(error: &Error) -> Value {
    let mut fields = json!({"type": error.name()});
    if let Some(refusal) = error.refusal() {
        fields["status"] = json!(refusal.status);
        fields["code"] = json!(refusal.code);
    }
    if let Error::ResultTooLarge { output_location, .. } = error {
        fields["output_location"] = json!(output_location);
    }
    fields
}
