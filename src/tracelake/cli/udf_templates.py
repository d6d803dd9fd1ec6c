"""The files of a new function, by language: a small one that works, with samples and a test that need no stack."""

from pathlib import Path
from platform import machine

from tracelake import runner
from tracelake.bundles.entrypoint import Language
from tracelake.runner.rust_sdk_files import VENDOR, read_rust_sdk

PROJECT_FILE = "trace-udf.toml"
"""What `trace udf build` and `push` know of a directory. It is not part of the bundle."""

_SAMPLE = """block_number,gas_used,timestamp
100,12000000,1772500000
101,29500000,1772500012
102,0,1772500024
103,30000000,1772500036
"""
_TEST_SECTION = """
# What `trace udf test` gives the function, besides the files in `sample`.
[test]
config = { least_gas = 15000000 }

[[test.outputs]]
name = "busy_blocks"
key = ["block_number"]
columns = { block_number = "int64", gas_used = "int64" }
"""
_PYTHON_MAIN = '''"""A function of Trace: it is called once for each task of its job.

It reads the blocks of the task and publishes the busy ones: those that used at least `least_gas` of gas.
"""

from tracelake.sdk import FunctionTask, handler

QUERY = "SELECT block_number, gas_used FROM raw_blocks WHERE gas_used >= $least_gas ORDER BY block_number"


def find_busy_blocks(task: FunctionTask) -> None:
    rows = task.query(QUERY, {"least_gas": task.config.get("least_gas", 15_000_000)})
    # The key follows from the data: a task that is tried again publishes the same rows.
    task.publish(rows, key="block_number")
    task.log("found busy blocks", blocks=len(rows))


handle = handler(find_busy_blocks)
'''
_PYTHON_TEST = '''"""Run with: python -m unittest discover -s tests -t .   (in an environment that has tracelake)

`trace udf test` runs the same function in its sandbox, with real SQL over the files in `sample`.
"""

import unittest

from main import find_busy_blocks


class TaskDouble:
    """What the function uses of its task."""

    config = {"least_gas": 20}

    def query(self, sql, parameters):
        self.parameters = parameters
        return [{"block_number": 7, "gas_used": 21}]

    def publish(self, rows, *, key):
        self.published = (rows, key)

    def log(self, message, **fields):
        self.logged = fields


class BusyBlocksTest(unittest.TestCase):
    def test_it_publishes_what_it_finds(self):
        task = TaskDouble()
        find_busy_blocks(task)
        self.assertEqual(task.parameters, {"least_gas": 20})
        self.assertEqual(task.published, ([{"block_number": 7, "gas_used": 21}], "block_number"))
        self.assertEqual(task.logged, {"blocks": 1})


if __name__ == "__main__":
    unittest.main()
'''
_NODE_INDEX = """// A function of Trace: it is called once for each task of its job. The runner provides the SDK.
import { handler } from "@tracelake/sdk";

import { findBusyBlocks } from "./busy_blocks.mjs";

export const handle = handler(findBusyBlocks);
"""
_NODE_FUNCTION = """// Reads the blocks of the task and publishes the busy ones: those that used at least `least_gas`
// of gas.

const QUERY = "SELECT block_number, gas_used FROM raw_blocks WHERE gas_used >= $least_gas ORDER BY block_number";

/** @param {import("@tracelake/sdk").FunctionTask} task */
export async function findBusyBlocks(task) {
  const rows = await task.query(QUERY, { least_gas: task.config.least_gas ?? 15_000_000 });
  // The key follows from the data: a task that is tried again publishes the same rows.
  await task.publish(rows, { key: "block_number" });
  task.log("found busy blocks", { blocks: rows.length });
}
"""
_NODE_TEST = """// Run with: node --test
// `trace udf test` runs the same function in its sandbox, with real SQL over the files in `sample`.
import assert from "node:assert";
import { test } from "node:test";

import { findBusyBlocks } from "../busy_blocks.mjs";

test("it publishes what it finds", async () => {
  const calls = [];
  const task = {
    config: { least_gas: 20 },
    query: async (sql, parameters) => {
      calls.push(parameters);
      return [{ block_number: 7, gas_used: 21 }];
    },
    publish: async (rows, options) => calls.push([rows, options]),
    log: (message, fields) => calls.push(fields),
  };
  await findBusyBlocks(task);
  assert.deepEqual(calls, [
    { least_gas: 20 },
    [[{ block_number: 7, gas_used: 21 }], { key: "block_number" }],
    { blocks: 1 },
  ]);
});
"""
_NODE_README = """# A function for Trace

    node --test                 # the test, without a stack
    trace udf test .            # a run in the sandbox, against the files in `sample`
    trace udf push .            # upload it

The runner provides `@tracelake/sdk`; `types` has its declarations, and `tsconfig.json` tells editors and compilers
where they are.

## TypeScript

The runner runs JavaScript, so compile with the tools that you use anyway:

1. Move `busy_blocks.mjs` and `index.mjs` to `src` as `.mts` files, and remove `allowJs`, `checkJs` and `noEmit` from
   `tsconfig.json`, which then writes to `dist`.
2. Compile: `npx tsc`. A bundler works as well, if it leaves `@tracelake/sdk` external and writes ES modules.
3. In `trace-udf.toml`, set `entrypoint = "dist/index.handle"` and add `src` to `leave_out`.

Packages of npm are part of the bundle: `node_modules` is uploaded unless `leave_out` has it.
"""
_TSCONFIG = """{
  "compilerOptions": {
    "target": "es2022",
    "module": "nodenext",
    "strict": true,
    "allowJs": true,
    "checkJs": true,
    "noEmit": true,
    "outDir": "dist",
    "paths": { "@tracelake/sdk": ["./types/tracelake-sdk.d.ts"] }
  },
  "include": ["*.mjs", "src"]
}
"""
_NODE_TYPES = Path(runner.__file__).with_name("node_sdk") / "index.d.ts"
"""A part of the package; a project has a copy, since there need not be a registry."""
_CARGO = f"""[package]
name = "function"
version = "0.1.0"
edition = "2021"

[[bin]]
name = "bootstrap"
path = "src/main.rs"

[dependencies]
serde_json = "1"
# In the sandbox of a runner all addresses are http; on AWS Lambda, leave out `default-features`.
tracelake-sdk = {{ path = "{VENDOR}", default-features = false }}

[profile.release]
opt-level = "s"
strip = true
"""
_RUST_MAIN = r"""//! A function of Trace: it is called once for each task of its job.
//!
//! It reads the blocks of the task and publishes the busy ones: those that used at least `least_gas` of gas.

use serde_json::{json, Value};
use tracelake_sdk::{run, Error, FunctionTask, Query};

const QUERY: &str = "SELECT block_number, gas_used FROM raw_blocks WHERE gas_used >= $least_gas ORDER BY block_number";

fn find_busy_blocks(task: &FunctionTask) -> Result<(), Error> {
    let rows = task.query(Query::new(QUERY).bind("least_gas", least_gas(&task.config)))?;
    // The key follows from the data: a task that is tried again publishes the same rows.
    let count = task.publish(&rows, &["block_number"])?;
    task.log_with("info", "found busy blocks", json!({"blocks": count}));
    Ok(())
}

fn least_gas(config: &Value) -> i64 {
    config["least_gas"].as_i64().unwrap_or(15_000_000)
}

fn main() {
    run(find_busy_blocks)
}

// `trace udf test` runs the whole function in its sandbox, with real SQL over the files in `sample`.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_comes_from_the_config() {
        assert_eq!(least_gas(&json!({"least_gas": 20})), 20);
        assert_eq!(least_gas(&json!({})), 15_000_000);
    }
}
"""

TEMPLATES: dict[Language, dict[str, str]] = {
    "python": {
        PROJECT_FILE: 'language = "python"\nentrypoint = "main.handle"\n'
        f'leave_out = ["tests", "sample"]\n{_TEST_SECTION}',
        "main.py": _PYTHON_MAIN,
        "sample/raw_blocks.csv": _SAMPLE,
        "tests/__init__.py": "",
        "tests/test_main.py": _PYTHON_TEST,
    },
    "node": {
        PROJECT_FILE: 'language = "node"\nentrypoint = "index.handle"\n'
        f'leave_out = ["test", "sample", "types", "tsconfig.json", "README.md"]\n{_TEST_SECTION}',
        "package.json": '{\n  "name": "function",\n  "private": true,\n  "type": "module",\n'
        '  "scripts": { "test": "node --test" }\n}\n',
        "README.md": _NODE_README,
        "busy_blocks.mjs": _NODE_FUNCTION,
        "index.mjs": _NODE_INDEX,
        "sample/raw_blocks.csv": _SAMPLE,
        "test/busy_blocks.test.mjs": _NODE_TEST,
        "tsconfig.json": _TSCONFIG,
        "types/tracelake-sdk.d.ts": _NODE_TYPES.read_text(encoding="utf-8"),
    },
    "rust": {
        PROJECT_FILE: 'language = "rust"\n'
        'leave_out = ["src", "tests", "sample", "target", "vendor", "Cargo.toml", "Cargo.lock", ".gitignore"]\n'
        f"{_TEST_SECTION}",
        "Cargo.toml": _CARGO,
        "src/main.rs": _RUST_MAIN,
        "sample/raw_blocks.csv": _SAMPLE,
        ".gitignore": "target/\nbootstrap\n",
        **{f"{VENDOR}/{name}": text for name, text in read_rust_sdk().items()},
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
