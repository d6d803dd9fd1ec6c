//! Performs a call of the SDK that is written in JSON, as the vectors write it.

use serde_json::{json, Value};
use tracelake_sdk::{Error, FunctionTask, OutputName, Parameter, Query, Update};

pub fn perform(task: &FunctionTask, call: &str, arguments: &Value) -> Result<Value, Error> {
    let text = |name: &str| arguments[name].as_str().unwrap_or_default();
    match call {
        "query" => Ok(json!(task.query(make_query(arguments))?)),
        "query_arrow" => Ok(encode(&task.query_arrow(make_query(arguments))?)),
        "publish" => {
            let key: Vec<&str> = match &arguments["key"] {
                Value::String(name) => vec![name],
                names => names.as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
            };
            let rows = decode_numbers(&arguments["rows"]);
            Ok(json!(task.publish_to(read_output(&arguments["output"]), rows.as_array().map_or(&[], Vec::as_slice), &key)?))
        }
        "publish_files" => {
            let files = arguments["files"].as_object().into_iter().flatten();
            let files = files.map(|(name, data)| (name.as_str(), decode(data)));
            task.publish_files_to(read_output(&arguments["output"]), files).map(|()| Value::Null)
        }
        "put" => Ok(json!(task.put(text("location"), &decode(&arguments["data"]))?)),
        "get" => Ok(encode(&task.get(text("location"))?)),
        "emit" => {
            let update = Update {
                output: read_output(&arguments["output"]),
                cursor: arguments["cursor"].as_i64(),
                partition_key: arguments["partition_key"].as_str().map(str::to_string),
                start: arguments["start"].as_i64(),
                end: arguments["end"].as_i64(),
                revision: arguments["revision"].as_str().map(str::to_string),
            };
            task.emit(update).map(|()| Value::Null)
        }
        "heartbeat" => {
            let reply = task.heartbeat()?;
            Ok(json!({"cancel": reply.cancel, "pause": reply.pause, "lease_expires_at": reply.lease_expires_at}))
        }
        "log" => {
            let mut fields = arguments.as_object().cloned().unwrap_or_default();
            fields.shift_remove("message");
            match fields.shift_remove("level") {
                Some(level) => task.log_with(level.as_str().unwrap_or_default(), text("message"), fields.into()),
                None if fields.is_empty() => task.log(text("message")),
                None => task.log_with("info", text("message"), fields.into()),
            }
            Ok(Value::Null)
        }
        "scratch" => Ok(json!(task.scratch()?)),
        "final_report" => Ok(task.final_report()),
        _ => Err(Error::Argument(format!("expected a call of the SDK, received {call:?}"))),
    }
}

fn make_query(arguments: &Value) -> Query {
    let mut query = Query::new(arguments["sql"].as_str().unwrap_or_default());
    for (name, value) in arguments["parameters"].as_object().into_iter().flatten() {
        query = match (&value["base64"], &value["integer"]) {
            (Value::String(_), _) => query.bind(name, decode(value)),
            (_, Value::String(digits)) => query.bind(name, digits.parse::<i128>().expect("an integer")),
            _ => query.bind(name, Parameter::from(value.clone())),
        };
    }
    match arguments["limit"].as_u64() {
        Some(rows) => query.limit(rows),
        None => query,
    }
}

fn read_output(output: &Value) -> OutputName {
    match output {
        Value::String(name) => OutputName::from(name.as_str()),
        Value::Number(index) => OutputName::from(index.as_i64().unwrap_or(-1)),
        _ => OutputName::Only,
    }
}

/// `{"integer": "7"}` stands for 7, since not every language reads large numbers exactly.
fn decode_numbers(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(decode_numbers).collect(),
        Value::Object(fields) => match (&value["integer"], fields.len()) {
            (Value::String(digits), 1) => digits.parse::<u64>().expect("an integer").into(),
            _ => fields.iter().map(|(name, item)| (name.clone(), decode_numbers(item))).collect(),
        },
        other => other.clone(),
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as `{"base64": ...}`.
fn encode(data: &[u8]) -> Value {
    let mut text = String::new();
    for part in data.chunks(3) {
        let bits = part.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for place in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= part.len() { char::from(letter) } else { '=' });
        }
    }
    json!({"base64": text})
}

/// The bytes of `{"base64": ...}`, or of a text.
pub fn decode(value: &Value) -> Vec<u8> {
    let Some(text) = value["base64"].as_str() else {
        return value.as_str().unwrap_or_default().as_bytes().to_vec();
    };
    let (mut data, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let digit = ALPHABET.iter().position(|other| *other == letter).expect("base64") as u32;
        (bits, count) = ((bits << 6 | digit) & 0xffff, count + 6);
        if count >= 8 {
            count -= 8;
            data.push((bits >> count) as u8);
        }
    }
    data
}
