"""The files of a new function, by language: the smallest one that works, with a test that needs no stack."""

from platform import machine

from tracelake.bundles.entrypoint import Language

PROJECT_FILE = "trace-udf.toml"
"""What `trace udf build` and `push` know of a directory. It is not part of the bundle."""

_PYTHON_MAIN = '''"""A function of Trace: it is called once for each task of its job."""


def handler(event, context):
    """`event` is the task: `task_id`, `attempt`, `config`, `inputs`, `outputs`. Raising an error fails the attempt."""
    names = [item["name"] for item in event["inputs"]]
    print(f"task {event['task_id']} reads {', '.join(names) or 'nothing'}")
    return {}
'''
_PYTHON_TEST = '''"""Run with: python -m unittest discover -s tests -t ."""

import unittest

from main import handler

EVENT = {"task_id": "t", "attempt": 1, "config": {}, "inputs": [{"name": "transfers"}], "outputs": []}


class HandlerTest(unittest.TestCase):
    def test_it_completes(self):
        self.assertEqual(handler(EVENT, None), {})


if __name__ == "__main__":
    unittest.main()
'''
_NODE_INDEX = """// A function of Trace: it is called once for each task of its job.

// `event` is the task: task_id, attempt, config, inputs, outputs. An error fails the attempt.
export async function handler(event) {
  const names = event.inputs.map((input) => input.name);
  console.log(`task ${event.task_id} reads ${names.join(", ") || "nothing"}`);
  return {};
}
"""
_NODE_TEST = """// Run with: node --test
import assert from "node:assert";
import { test } from "node:test";

import { handler } from "../index.mjs";

test("it completes", async () => {
  const event = { task_id: "t", attempt: 1, config: {}, inputs: [{ name: "transfers" }], outputs: [] };
  assert.deepEqual(await handler(event), {});
});
"""
_CARGO = """[package]
name = "function"
version = "0.1.0"
edition = "2021"

[[bin]]
name = "bootstrap"
path = "src/main.rs"

[profile.release]
opt-level = "s"
strip = true
"""
_RUST_MAIN = r"""//! A function of Trace: it is called once for each task of its job.
//!
//! `main` speaks the Lambda Runtime API, with the standard library alone. `handler` is yours.

use std::env;
use std::io::{Read, Write};
use std::net::TcpStream;

/// `event` is the task as JSON: task_id, attempt, config, inputs, outputs. The result is JSON too.
fn handler(event: &str) -> Result<String, String> {
    println!("an event of {} bytes", event.len());
    Ok("{}".to_string())
}

fn main() {
    let api = env::var("AWS_LAMBDA_RUNTIME_API").expect("AWS_LAMBDA_RUNTIME_API is not set");
    loop {
        let next = call(&api, "GET", "/2018-06-01/runtime/invocation/next", "").expect("no next invocation");
        let id = next.header("lambda-runtime-aws-request-id").expect("an invocation without an id");
        let (kind, body) = match handler(&next.body) {
            Ok(result) => ("response", result),
            Err(message) => ("error", error_body(&message)),
        };
        let path = format!("/2018-06-01/runtime/invocation/{id}/{kind}");
        call(&api, "POST", &path, &body).expect("the result was not taken");
    }
}

fn error_body(message: &str) -> String {
    let text: String = message.chars().flat_map(|letter| match letter {
        '"' | '\\' => vec!['\\', letter],
        letter if letter.is_control() => vec![' '],
        letter => vec![letter],
    }).collect();
    format!("{{\"errorType\": \"HandlerError\", \"errorMessage\": \"{text}\"}}")
}

struct Reply {
    head: String,
    body: String,
}

impl Reply {
    fn header(&self, name: &str) -> Option<String> {
        self.head.lines().filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim().eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_string())
    }
}

fn call(api: &str, method: &str, path: &str, body: &str) -> std::io::Result<Reply> {
    let mut stream = TcpStream::connect(api)?;
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {api}\r\nconnection: close");
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
    read_reply(&mut stream)
}

fn read_reply(stream: &mut impl Read) -> std::io::Result<Reply> {
    let mut data = Vec::new();
    let mut piece = [0; 65536];
    loop {
        let text = String::from_utf8_lossy(&data);
        if let Some((head, rest)) = text.split_once("\r\n\r\n") {
            let reply = Reply { head: head.to_string(), body: rest.to_string() };
            let size = reply.header("content-length").and_then(|value| value.parse::<usize>().ok());
            if size.is_some_and(|size| data.len() >= head.len() + 4 + size) {
                return Ok(reply);
            }
        }
        let count = stream.read(&mut piece)?;
        if count == 0 {
            let text = String::from_utf8_lossy(&data).to_string();
            let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
            return Ok(Reply { head: head.to_string(), body: body.to_string() });
        }
        data.extend_from_slice(&piece[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_completes() {
        assert_eq!(handler("{\"task_id\": \"t\", \"inputs\": []}"), Ok("{}".to_string()));
    }

    #[test]
    fn a_reply_has_its_headers_and_its_body() {
        let mut text = "HTTP/1.1 200 OK\r\nLambda-Runtime-Aws-Request-Id: 7\r\ncontent-length: 2\r\n\r\n{}".as_bytes();
        let reply = read_reply(&mut text).unwrap();
        assert_eq!((reply.header("lambda-runtime-aws-request-id"), reply.body.as_str()), (Some("7".to_string()), "{}"));
    }

    #[test]
    fn an_error_is_json() {
        assert!(error_body("a \"b\" \\ \n").ends_with("\"a \\\"b\\\" \\\\  \"}"));
    }
}
"""

TEMPLATES: dict[Language, dict[str, str]] = {
    "python": {
        PROJECT_FILE: 'language = "python"\nentrypoint = "main.handler"\nleave_out = ["tests"]\n',
        "main.py": _PYTHON_MAIN,
        "tests/__init__.py": "",
        "tests/test_main.py": _PYTHON_TEST,
    },
    "node": {
        PROJECT_FILE: 'language = "node"\nentrypoint = "index.handler"\nleave_out = ["test"]\n',
        "package.json": '{\n  "name": "function",\n  "private": true,\n  "type": "module",\n'
        '  "scripts": { "test": "node --test" }\n}\n',
        "index.mjs": _NODE_INDEX,
        "test/index.test.mjs": _NODE_TEST,
    },
    "rust": {
        PROJECT_FILE: 'language = "rust"\n'
        'leave_out = ["src", "tests", "target", "Cargo.toml", "Cargo.lock", ".gitignore"]\n',
        "Cargo.toml": _CARGO,
        "src/main.rs": _RUST_MAIN,
        ".gitignore": "target/\nbootstrap\n",
    },
}
TESTS: dict[Language, str] = {
    "python": "python -m unittest discover -s tests -t .",
    "node": "node --test",
    "rust": "cargo test",
}
"""How the test of a template is run, in its directory."""
RUST_BUILD = f"cargo build --release --target {machine()}-unknown-linux-musl && cp target/*/release/bootstrap ."
"""A program that is linked statically runs on every Linux."""
