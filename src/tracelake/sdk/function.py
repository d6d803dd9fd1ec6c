"""A function's view of its task, and the decorator that makes a Lambda handler of a function."""

import base64
import functools
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracelake.sdk.errors import ArgumentError, CallError, FencedError, ResultTooLargeError
from tracelake.sdk.http import HttpAnswer, HttpExchange, NetworkExchange, exchange_patiently
from tracelake.sdk.keys import KeyRules
from tracelake.sdk.storage import ScopedStorage, split_location

_BATCH_BYTES = 8 * 1024 * 1024
"""Larger publishes become several batches; the platform takes 16 MiB by default."""
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*\.parquet")


@dataclass(frozen=True)
class FunctionInput:
    name: str
    unit: Mapping[str, Any]
    """`{"cursor": {"after", "to"}}`, or `{"partition_key", "start", "end"}`."""
    revision: str
    where: Mapping[str, Any] | None
    dataset_uuid: str
    dataset_version: str


@dataclass(frozen=True)
class FunctionOutput:
    index: int
    name: str
    kind: str
    """`s3`, `buffered`, `postgres` or `none`."""
    prefix: str | None
    """Where files (`s3`) or batches (`buffered`) are written."""
    dataset_uuid: str
    dataset_version: str

    @property
    def generation(self) -> dict[str, str]:
        return {"dataset_uuid": self.dataset_uuid, "dataset_version": self.dataset_version}


class FunctionTask:
    def __init__(
        self,
        event: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        exchange: HttpExchange | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Made by `handler`; the other arguments are for tests."""
        environment = os.environ if environment is None else environment
        self.task_id: str = event["task_id"]
        self.attempt: int = event["attempt"]
        self.config: Mapping[str, Any] = event.get("config") or {}
        self.inputs = [_read_input(item) for item in event.get("inputs", [])]
        self.outputs = [_read_output(item) for item in event.get("outputs", [])]
        self._lease_token: str = event["lease_token"]
        self._token: str = event["capability_token"]
        self._task_url = environment["TRACE_TASK_URL"].rstrip("/")
        self._query_url = environment.get("TRACE_QUERY_URL", self._task_url).rstrip("/")
        self._exchange = exchange or NetworkExchange(environment.get("TRACE_CA_FILE"))
        self._clock = clock
        self._sleep = sleep
        self._storage = ScopedStorage(
            self._ask_credentials, self._exchange, environment.get("AWS_ENDPOINT_URL_S3"), clock, sleep
        )
        self._keys = KeyRules(
            task_id=self.task_id,
            attempt=self.attempt,
            lease_token=self._lease_token,
            token=self._token,
            started_at=clock(),
        )
        self._report: dict[str, list[Any]] = {}

    # Reading

    def query(
        self, sql: str, parameters: Mapping[str, Any] | None = None, *, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """The rows of a SELECT over the inputs, each of which has the name of its dataset."""
        reply = json.loads(self._query(sql, parameters, limit, "json").body)
        if reply.get("truncated"):
            raise ResultTooLargeError(reply["row_count"], reply.get("output_location"))
        names = [column["name"] for column in reply["columns"]]
        return [dict(zip(names, row, strict=True)) for row in reply["rows"]]

    def query_arrow(self, sql: str, parameters: Mapping[str, Any] | None = None, *, limit: int | None = None) -> bytes:
        """The result as an Arrow IPC stream."""
        answer = self._query(sql, parameters, limit, "arrow")
        summary = json.loads(answer.headers.get("x-trace-query", "{}"))
        if summary.get("truncated"):
            raise ResultTooLargeError(summary["row_count"], summary.get("output_location"))
        return answer.body

    def _query(
        self, sql: str, parameters: Mapping[str, Any] | None, limit: int | None, result_format: str
    ) -> HttpAnswer:
        body: dict[str, Any] = {"sql": sql}
        if parameters:
            body["parameters"] = {name: _parameter(value) for name, value in parameters.items()}
        if limit is not None:
            body["limit"] = limit
        if result_format != "json":
            body["format"] = result_format
        return self._send(f"{self._query_url}/v1/task/query", body)

    # Scoped storage

    @property
    def scratch(self) -> str:
        """The prefix for files of this attempt that nobody else reads."""
        payload = self._token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        prefix: str = claims["s3"]["scratch_prefix"]
        return prefix

    def get(self, location: str) -> bytes:
        """An object: `s3://bucket/key`, or a name below `scratch`."""
        return self._storage.get(self._locate(location))

    def put(self, location: str, data: bytes) -> str:
        """Write an object, whole; returns its address."""
        address = self._locate(location)
        self._storage.put(address, data)
        return address

    def _locate(self, location: str) -> str:
        return location if location.startswith("s3://") else self.scratch + location

    def _ask_credentials(self, location: str) -> Any:
        return self._call("credentials", {"locations": [location]})

    # Publishing

    def publish(
        self, rows: Iterable[Mapping[str, Any]], *, key: str | Sequence[str], output: int | str | None = None
    ) -> int:
        """Publish rows of a buffered dataset; returns their number. `key` names the columns of the declared key.

        Rows are visible after the task has completed. The same rows again are the same batch.
        """
        target = self._choose(output, "buffered")
        batch = list(rows)
        self._keys.check(batch, [key] if isinstance(key, str) else key, self._clock())
        for lines in _split(batch):
            data = b"".join(lines)
            digest = hashlib.sha256(data).hexdigest()
            uri = f"{target.prefix}{digest[:32]}.jsonl"
            self._storage.put(uri, data)
            body = {
                "batch_uri": uri,
                "dataset_uuid": target.dataset_uuid,
                "dataset_version": target.dataset_version,
                "record_count": len(lines),
                "batch_size_bytes": len(data),
                "batch_sha256": digest,
            }
            self._call("buffer-publish", body)
        return len(batch)

    def publish_files(self, files: Mapping[str, bytes], *, output: int | str | None = None) -> None:
        """Write the Parquet files of the task's unit. They are committed, and announced, when the task completes."""
        target = self._choose(output, "s3")
        assert target.prefix is not None
        for name in files:
            if not _FILE_NAME.fullmatch(name):
                raise ArgumentError(f"expected a name like blocks_0_9.parquet, received {name!r}")
        listing: list[dict[str, Any]] = []
        for name, data in sorted(files.items()):
            self._storage.put(target.prefix + name, data)
            listing.append({"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
        self._storage.put(target.prefix + "_SUCCESS", _encode({"format": "trace-files-2", "files": listing}))
        start, end = self._unit_range()
        bucket, key = split_location(target.prefix + "x")
        reference = {"scheme": "s3", "bucket": bucket, "prefix": key[:-1], "glob": "*.parquet"}
        size = sum(item["size"] for item in listing)
        report = {"output_index": target.index, **target.generation, "file_count": len(listing), "size_bytes": size}
        publication = {**target.generation, "storage_ref": reference, "range_start": start, "range_end": end}
        event = {**target.generation, "partition_key": f"{start}-{end}", "start": start, "end": end}
        for name, entry in (("outputs", report), ("datasets_published", publication), ("events", event)):
            self._report.setdefault(name, []).append(entry)

    def emit(
        self,
        *,
        output: int | str | None = None,
        cursor: int | None = None,
        partition_key: str | None = None,
        start: int | None = None,
        end: int | None = None,
        revision: str | None = None,
    ) -> None:
        """Announce an update of an output without files: a cursor or a partition, by default the unit of the task."""
        target = self._choose(output, "none", "postgres")
        if cursor is None and partition_key is None and start is None:
            unit = self._unit()
            cursor = unit["cursor"]["to"] if unit.get("cursor") else None
            partition_key, start, end = unit.get("partition_key"), unit.get("start"), unit.get("end")
        if start is not None and partition_key is None:
            partition_key = f"{start}-{end}"
        fields = {"cursor": cursor, "partition_key": partition_key, "start": start, "end": end, "revision": revision}
        event = {**target.generation, **{name: value for name, value in fields.items() if value is not None}}
        self._call("events", {"events": [event]})
        self._report.setdefault("events", [])

    # Life

    def heartbeat(self) -> dict[str, Any]:
        """Extend the lease. `cancel` in the reply asks the function to stop."""
        reply = self._call("heartbeat", {})
        self._token = reply.get("capability_token") or self._token
        return {name: reply[name] for name in ("cancel", "pause", "lease_expires_at")}

    def log(self, message: str, level: str = "info", **fields: Any) -> None:
        """One line of JSON on standard error, which is kept as the log of the run."""
        entry = {"level": level, "message": message, **fields}
        sys.stderr.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":"), default=str) + "\n")

    def final_report(self) -> dict[str, list[Any]]:
        """What the handler returns: the runner completes the task with it."""
        return self._report

    # Calls

    def _call(self, name: str, body: Mapping[str, Any]) -> Any:
        return json.loads(self._send(f"{self._task_url}/v1/task/{name}", body).body)

    def _send(self, url: str, body: Mapping[str, Any]) -> HttpAnswer:
        fence = {"task_id": self.task_id, "attempt": self.attempt, "lease_token": self._lease_token}
        data = _encode({**fence, **body})
        answer = exchange_patiently(self._exchange, self._headers, "POST", url, data, self._sleep)
        if answer.status != 200:
            raise _refusal(answer.status, answer.body)
        return answer

    def _headers(self) -> dict[str, str]:
        return {"content-type": "application/json", "x-trace-task-capability": self._token}

    # The task

    def _choose(self, output: int | str | None, *kinds: str) -> FunctionOutput:
        """The named output, or the only one of these kinds."""
        matching = [item for item in self.outputs if item.kind in kinds]
        if output is not None:
            matching = [item for item in matching if output in (item.index, item.name)]
        if len(matching) != 1:
            names = ", ".join(f"{item.index} ({item.name}, {item.kind})" for item in self.outputs) or "none"
            expected = " or ".join(kinds)
            raise ArgumentError(f"expected one output of kind {expected}: name it with `output`; the task has {names}")
        return matching[0]

    def _unit(self) -> Mapping[str, Any]:
        if not self.inputs:
            raise ArgumentError("the task has no input, so it has no unit: name a cursor or a partition")
        return self.inputs[0].unit

    def _unit_range(self) -> tuple[int, int]:
        unit = self._unit()
        cursor = unit.get("cursor")
        if cursor:
            return min(cursor["after"] + 1, cursor["to"]), cursor["to"]
        if unit.get("start") is None:
            raise ArgumentError("the unit of the task has no range of blocks, so it has no files")
        return unit["start"], unit["end"]


def handler(function: Callable[[FunctionTask], Any]) -> Callable[[Mapping[str, Any], Any], Any]:
    """Makes a Lambda handler of a function that takes its task. What the function returns is ignored."""

    @functools.wraps(function)
    def handle(event: Mapping[str, Any], _context: Any = None) -> dict[str, list[Any]]:
        task = FunctionTask(event)
        function(task)
        return task.final_report()

    return handle


def _read_input(item: Mapping[str, Any]) -> FunctionInput:
    return FunctionInput(
        item["name"],
        item["unit"],
        item.get("revision", ""),
        item.get("where"),
        item["dataset_uuid"],
        item["dataset_version"],
    )


def _read_output(item: Mapping[str, Any]) -> FunctionOutput:
    storage = item["storage"]
    prefix = storage.get("write_prefix") or storage.get("buffer_prefix")
    return FunctionOutput(
        item["output_index"], item["name"], storage["kind"], prefix, item["dataset_uuid"], item["dataset_version"]
    )


def _parameter(value: Any) -> dict[str, Any]:
    """A value with its type; a mapping with `type` and `value` is taken as it is."""
    match value:
        case {"type": _, "value": _}:
            return dict(value)
        case bool():
            return {"type": "bool", "value": value}
        case int() if -(2**63) <= value < 2**63:
            return {"type": "int64", "value": value}
        case int():
            return {"type": "int256", "value": str(value)}
        case float():
            return {"type": "float64", "value": value}
        case str():
            return {"type": "text", "value": value}
        case bytes():
            return {"type": "bytes", "value": "0x" + value.hex()}
        case _:
            raise ArgumentError(
                f"expected a bool, int, float, str, bytes or {{type, value}}, received {type(value).__name__}"
            )


def _encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _split(rows: Iterable[Mapping[str, Any]]) -> Iterable[list[bytes]]:
    lines: list[bytes] = []
    size = 0
    for row in rows:
        line = _encode(row) + b"\n"
        if lines and size + len(line) > _BATCH_BYTES:
            yield lines
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield lines


def _refusal(status: int, body: bytes) -> CallError:
    try:
        error = json.loads(body)["error"]
        code, message, details = error["code"], error["message"], error.get("details")
    except (ValueError, KeyError, TypeError):
        code, message, details = "unknown", f"the call was answered with status {status}", None
    return (FencedError if status == 409 else CallError)(status, code, message, details)
