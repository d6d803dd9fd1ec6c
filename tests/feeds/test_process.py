"""Feeds as a worker runs them: a limited process that calls a real server, files and batches that come out of it."""

import gzip
import json
import socket
import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from tools.docs import ROOT

from tests.feeds.support import WAIT_SECONDS, FeedServer, FeedTrial, reply
from tracelake.catalogue.context import CanceledError, NonRetryableError, StoredDelivery
from tracelake.feeds.launch import FeedFailedError
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.spark.child.sandbox import landlock_version
from tracelake.spark.testing import make_unit
from tracelake.wire.units import Unit

COLUMNS = {"symbol": "text", "price": "decimal(38,18)", "supply": "uint256"}
ROWS = [
    {"symbol": "ETH", "price": "3012.000000000000000001", "supply": 2**256 - 1},
    {"symbol": "BTC", "price": 64000.5, "supply": "0"},
]


def test_rows_of_a_server_become_a_file(server: FeedServer, trial: FeedTrial) -> None:
    server.on(
        "/prices", reply(gzip.compress(json.dumps({"data": ROWS}).encode()), headers={"content-encoding": "gzip"})
    )
    config = {
        "url": f"{server.url}/prices?from={{start}}&to={{end_time}}",
        "rows": "data",
        "columns": {**COLUMNS, "slot": {"path": "@end", "type": "timestamp", "unit": "seconds"}},
        "headers": {"X-Key": {"secret": "KEY", "prefix": "Bearer "}, "x-plain": "a b"},
        "query": {"who": "a&b", "key": {"secret": "KEY"}},
    }
    result = trial.run("http_fetch", config, unit=make_unit(None, (99, 3600)), secrets={"KEY": "k-12345678"})
    assert trial.table().to_pylist() == [
        {
            "symbol": row["symbol"],
            "price": Decimal(str(row["price"])).quantize(Decimal("1e-18")),
            "supply": str(row["supply"]),
            "slot": datetime(1970, 1, 1, 1, tzinfo=UTC),
        }
        for row in ROWS
    ]
    (call,) = server.calls
    assert call.target == "/prices?from=100&to=1970-01-01T01%3A00%3A00Z&who=a%26b&key=k-12345678"
    assert (call.headers["x-key"], call.headers["x-plain"]) == ("Bearer k-12345678", "a b")
    (event,) = result.events
    assert (event.start, event.end, result.outputs[0].row_count) == (100, 3600, 2)


def test_a_buffered_output_gets_judged_batches_in_order(server: FeedServer, trial: FeedTrial) -> None:
    columns = tuple(
        Column(name=name, type=kind, nullable=False)
        for name, kind in (("symbol", ColumnType.TEXT), ("supply", ColumnType.UINT256), ("more", ColumnType.JSON))
    )
    trial.schemas = [Schema(columns=columns, unique=("symbol",))]
    server.on("/x", reply('[{"s":"A","n":1,"more":{"a":[1.10,null]}},{"s":"B","n":"2","more":{}}]'))
    config = {
        "url": f"{server.url}/x",
        "columns": {
            "symbol": {"path": "s", "type": "text"},
            "supply": {"path": "n", "type": "uint256"},
            "more": "json",
        },
    }
    trial.run("http_fetch", config, unit=Unit(partition_key="any key"))
    assert trial.lines() == (
        b'{"symbol":"A","supply":"1","more":{"a":[1.10,null]}}\n{"symbol":"B","supply":"2","more":{}}\n'
    )
    assert [batch.records for batch in trial.published] == [2]
    too_long = narrowed(trial.schemas[0], max_length=0)
    trial.schemas, trial.published = [too_long], []
    with pytest.raises(NonRetryableError, match="does not fit the schema of out0: symbol"):
        trial.run("http_fetch", config)
    assert not trial.published


def narrowed(schema: Schema | None, *, max_length: int) -> Schema:
    assert schema is not None
    first, *others = schema.columns
    narrow = Column(name=first.name, type=first.type, nullable=False, max_length=max_length)
    return Schema(columns=(narrow, *others), unique=schema.unique)


def test_bad_rows_fail_the_task_or_go_to_the_second_output(server: FeedServer, trial: FeedTrial) -> None:
    server.on("/x", reply('[{"n": 1}, {"n": 1.5}, {"m": 3}, {"n": 4}]'))
    config = {"url": f"{server.url}/x", "columns": {"n": "int64"}}
    with pytest.raises(FeedFailedError, match=r"page 1, row 2: n: expected a whole number, received the number 1\.5"):
        trial.run("http_fetch", config)
    trial.schemas = (None, None)
    result = trial.run("http_fetch", config)
    assert trial.table().to_pylist() == [{"n": 1}, {"n": 4}]
    assert trial.table(1).to_pylist() == [
        {
            "origin": "page 1",
            "row": 2,
            "column": "n",
            "reason": "expected a whole number, received the number 1.5",
            "record": '{"n":1.5}',
        },
        {
            "origin": "page 1",
            "row": 3,
            "column": "n",
            "reason": "is missing; set `nullable: true` if it may be",
            "record": '{"m":3}',
        },
    ]
    assert [output.row_count for output in result.outputs] == [2, 2]
    assert trial.progress_texts[-1] == "2 rows, 2 rejected"


@pytest.mark.parametrize("operator", ["http_fetch", "webhook_rows"])
def test_rows_that_the_dataset_cannot_hold_go_to_the_second_output(
    operator: str, server: FeedServer, trial: FeedTrial
) -> None:
    account = Column(name="account", type=ColumnType.TEXT, nullable=False, max_length=3)
    schema = Schema(columns=(account, Column(name="more", type=ColumnType.JSON)), unique=("account",))
    accounts = ["one", "three", "four", "two", *(f"n{number}" for number in range(10)), "eleven"]
    body = json.dumps([{"account": name, "more": {"a": 1}} for name in accounts])
    config: dict[str, object] = {"columns": {"account": "text", "more": "json"}}
    if operator == "http_fetch":
        server.on("/x", reply(body))
        config["url"] = f"{server.url}/x"
    else:
        trial.deliveries = [delivery(1, body.encode())]
    trial.schemas = [schema]
    with pytest.raises(NonRetryableError) as failed:
        trial.run(operator, config)
    assert "account: is longer than 3 characters" in str(failed.value)
    assert "set `outputs: 2` to keep such rows apart" in str(failed.value)
    assert "query" not in str(failed.value)
    trial.schemas = [schema, None]
    trial.run(operator, config)
    kept = [json.loads(line)["account"] for line in trial.lines().splitlines()]
    assert kept == [name for name in accounts if len(name) <= 3]
    rejected = trial.table(1).to_pylist()
    assert [(row["row"], row["column"], row["record"]) for row in rejected] == [
        (number, "account", f'{{"account":"{name}","more":{{"a":1}}}}')
        for number, name in enumerate(accounts, 1)
        if len(name) > 3
    ]
    assert {row["reason"] for row in rejected} == {"is longer than 3 characters"}
    assert trial.progress_texts[-1].startswith("12 rows, 3 rejected")
    config["columns"] = {"id": {"path": "account", "type": "text"}}
    with pytest.raises(NonRetryableError, match="does not fit the schema of out0: id: is not a column"):
        trial.run(operator, config)


def delivery(number: int, body: bytes) -> StoredDelivery:
    moment = datetime(2026, 1, 31, 12, 0, number, tzinfo=UTC)
    return StoredDelivery(number, f"id-{number}", moment, "application/json", body)


def test_deliveries_become_rows_in_their_order(trial: FeedTrial) -> None:
    trial.deliveries = [delivery(3, b'{"a": 1}'), delivery(4, b'[{"a": 2}, {"a": 3}]')]
    config = {
        "columns": {
            "delivery": {"path": "@delivery", "type": "text"},
            "row": {"path": "@row", "type": "int32"},
            "received": {"path": "@received_at", "type": "timestamp"},
            "a": "int64",
        }
    }
    trial.run("webhook_rows", config, unit=make_unit(None, (2, 4)))
    found = [(row["delivery"], row["row"], row["received"].second, row["a"]) for row in trial.table().to_pylist()]
    assert found == [("id-3", 1, 3, 1), ("id-4", 1, 4, 2), ("id-4", 2, 4, 3)]
    trial.deliveries = [delivery(5, b"<html>")]
    with pytest.raises(NonRetryableError, match="delivery id-5: the body cannot be read: it is not JSON"):
        trial.run("webhook_rows", config)
    trial.schemas = (None, None)
    trial.run("webhook_rows", config, unit=make_unit(None, (4, 5)))
    assert (trial.table().num_rows, trial.table(1)["row"].to_pylist()) == (0, [0])


def test_the_process_ends_when_the_task_is_cancelled(server: FeedServer, trial: FeedTrial) -> None:
    asked, gone = threading.Event(), threading.Event()

    def never(connection: socket.socket) -> None:
        asked.set()
        connection.settimeout(WAIT_SECONDS)
        assert connection.recv(1) == b""
        gone.set()

    server.on("/x", never)

    def cancel() -> None:
        asked.wait(WAIT_SECONDS)
        trial.cancel.set()

    threading.Thread(target=cancel, daemon=True).start()
    with pytest.raises(CanceledError):
        trial.run("http_fetch", {"url": f"{server.url}/x", "columns": {"n": "int64"}})
    assert gone.wait(WAIT_SECONDS), "the connection ended with the process"


def test_a_document_that_needs_too_much_memory_fails_alone(server: FeedServer, trial: FeedTrial) -> None:
    trial.memory_bytes = 200 * 2**20
    bomb = b"[" + b'{"a":[{},{},{},{},{},{},{},{}]},' * 400_000 + b"{}]"
    server.on("/x", reply(gzip.compress(bomb, 1), headers={"content-encoding": "gzip"}))
    with pytest.raises(NonRetryableError, match="more than 200 MiB of memory"):
        trial.run("http_fetch", {"url": f"{server.url}/x", "columns": {"n": "int64"}})


def test_an_answer_that_repeats_a_secret_is_not_kept(server: FeedServer, trial: FeedTrial) -> None:
    server.on("/x", reply('[{"n": "key-abcdef"}]'))
    config = {"url": f"{server.url}/x", "columns": {"n": "text"}, "headers": {"X-Key": {"secret": "K"}}}
    with pytest.raises(NonRetryableError, match="repeats a secret") as error:
        trial.run("http_fetch", config, secrets={"K": "key-abcdef"})
    assert "abcdef" not in str(error.value)


PROBE = """
import json, os, sys
if "tracelake.feeds.process" in sys.orig_argv:
    import tracelake.feeds.process.serve as serve
    from tracelake.feeds.errors import FeedError

    def tries(action):
        try:
            return action()
        except OSError as error:
            return type(error).__name__

    def probe(task, say, client=None):
        seen = {
            "file": tries(lambda: open(task.config["url"].partition("?")[2]).read()),
            "write": tries(lambda: open("/tmp/trace-feed-probe", "w").close()),
            "parent": tries(lambda: open(f"/proc/{os.getppid() or 1}/environ").read()),
            "environment": sorted(name for name in os.environ if name.startswith("TRACE")),
            "secrets": sorted(task.secrets),
        }
        raise FeedError(json.dumps(seen), final=True)

    serve.run_task = probe
"""


def test_the_process_reads_no_file_and_inherits_nothing(
    trial: FeedTrial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sitecustomize.py").write_text(PROBE)
    (tmp_path / "key").write_text("the worker's")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'modules'}:{ROOT / 'src'}")
    monkeypatch.setenv("TRACE_SECRET_ACME__OTHER", "hidden-value")
    config = {"url": f"http://127.0.0.1/?{tmp_path / 'key'}", "columns": {"n": "int64"}}
    with pytest.raises(NonRetryableError) as error:
        trial.run("http_fetch", config, secrets={"OTHER": "hidden-value"})
    seen = json.loads(str(error.value))
    if not landlock_version():
        pytest.skip("the kernel has no Landlock")
    assert (seen["file"], seen["write"]) == ("PermissionError", "PermissionError")
    assert seen["parent"] in ("PermissionError", "FileNotFoundError", "ProcessLookupError")
    assert (seen["environment"], seen["secrets"]) == ([], [])
