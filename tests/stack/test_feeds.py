"""Feeds on a whole stack: fetches that are joined, a worker that is killed meanwhile, deliveries that become rows."""

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.feeds.support import WAIT_SECONDS, FeedServer, reply
from tests.support.real_stack import RealStack
from tracelake.wire.webhooks import signature_header

KEY = "key-1f2e3d4c5b6a"
DAG = """\
name: feeds
defaults: {{ runtime: ecs_platform, max_attempts: 5 }}
jobs:
  - {{ name: ranges, activation: source, source: {{ kind: manual }} }}
  - name: prices
    activation: reactive
    operator: http_fetch
    execution_strategy: PerPartition
    secrets: [KEY]
    inputs: [{{ from: {{ job: ranges }} }}]
    config:
      url: "{url}/prices/{{start}}/{{end}}"
      headers: {{ X-Key: {{ secret: KEY }} }}
      columns: {{ symbol: text, price: "decimal(20,4)", block_number: int64 }}
  - name: supplies
    activation: reactive
    operator: http_fetch
    execution_strategy: PerPartition
    inputs: [{{ from: {{ job: ranges }} }}]
    config: {{ url: "{url}/supplies.csv", format: csv, columns: {{ symbol: text, supply: uint256 }} }}
  - name: caps
    activation: reactive
    operator: spark_sql
    execution_strategy: PerPartition
    inputs: [{{ from: {{ job: prices }} }}, {{ from: {{ job: supplies }} }}]
    config:
      query: |
        SELECT symbol, CAST(price * CAST(supply AS DECIMAL(10,0)) AS STRING) AS cap
        FROM prices JOIN supplies USING (symbol)
      order_by: [symbol]
  - name: forbidden
    activation: reactive
    operator: http_fetch
    inputs: [{{ from: {{ job: ranges }} }}]
    config: {{ url: "http://127.0.0.1:1/", columns: {{ a: text }} }}
  - {{ name: hook, activation: source, source: {{ kind: webhook, webhook_path: feeds/payments, unit: delivery }} }}
  - name: rows
    activation: reactive
    operator: webhook_rows
    inputs: [{{ from: {{ job: hook }} }}]
    config:
      rows: payments
      columns:
        delivery: {{ path: "@delivery", type: text }}
        row: {{ path: "@row", type: int32 }}
        amount: uint256
publish:
  prices: {{ from: {{ job: prices }}, storage: s3 }}
  supplies: {{ from: {{ job: supplies }}, storage: s3 }}
  caps: {{ from: {{ job: caps }}, storage: s3 }}
  payments:
    from: {{ job: rows }}
    storage: postgres
    write_mode: buffered
    schema:
      columns:
        - {{ name: delivery, type: text, nullable: false }}
        - {{ name: row, type: int32, nullable: false }}
        - {{ name: amount, type: uint256 }}
      unique: [delivery, row]
"""


WINDOWS = """\
name: hours
defaults: {{ runtime: ecs_platform }}
jobs:
  - {{ name: tick, activation: source, source: {{ kind: cron, schedule: "* * * * * *" }} }}
  - name: rates
    activation: reactive
    operator: http_fetch
    inputs: [{{ from: {{ job: tick }} }}]
    config:
      url: "{url}/rates?end={{end}}"
      columns: {{ rate: int64, at: {{ path: "@end", type: timestamp, unit: seconds }} }}
  - {{ name: hook, activation: source, source: {{ kind: webhook, webhook_path: hours/orders, unit: delivery }} }}
  - name: orders
    activation: reactive
    operator: webhook_rows
    inputs: [{{ from: {{ job: hook }} }}]
    config: {{ columns: {{ amount: int64, at: {{ path: "@received_at", type: timestamp }} }} }}
  - name: hourly_rates
    activation: reactive
    operator: spark_sql
    units: {{ by: time, grain: hour, when: updated }}
    inputs: [{{ from: {{ job: rates }}, by: at }}]
    config: {{ query: "SELECT max(rate) AS rate FROM rates" }}
  - name: monthly_orders
    activation: reactive
    operator: spark_sql
    units: {{ by: time, grain: month, when: updated }}
    inputs: [{{ from: {{ job: orders }}, by: at }}]
    config: {{ query: "SELECT sum(amount) AS amount FROM orders" }}
publish:
  rates: {{ from: {{ job: rates }}, storage: s3 }}
  orders: {{ from: {{ job: orders }}, storage: s3 }}
  hourly_rates: {{ from: {{ job: hourly_rates }}, storage: s3 }}
  monthly_orders: {{ from: {{ job: monthly_orders }}, storage: s3 }}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[FeedServer]:
    with FeedServer().running() as running:
        yield running


@pytest.fixture(scope="module")
def stack(server: FeedServer) -> Iterator[RealStack]:
    stack = RealStack(variables={"TRACE_SECRET_DEFAULT__KEY": KEY})
    stack.settings["feed_hosts"] = f"default@127.0.0.1:{server.port}"
    with stack.running():
        yield stack


def deliver(stack: RealStack, secret: str, delivery: str, body: Any, path: str = "feeds/payments") -> Any:
    data = json.dumps(body).encode()
    now = int(stack.sql("SELECT extract(epoch FROM trace_now())::bigint AS now")[0]["now"])
    headers = {"X-Trace-Delivery": delivery, "X-Trace-Signature": signature_header([secret], now, delivery, data)}
    status, answer = stack.call(stack.stack.public_url, f"/v1/webhooks/{path}", data, headers)
    assert status == 200, answer
    return answer


def rows_of(stack: RealStack, dataset: str) -> list[dict[str, Any]]:
    path = stack.files / f"{dataset}.jsonl"
    path.unlink(missing_ok=True)
    stack.shell(f"trace read {dataset} --output {path.name}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_feeds_through_faults(stack: RealStack, server: FeedServer) -> None:
    asked = threading.Event()

    def never(connection: socket.socket) -> None:
        asked.set()
        connection.settimeout(WAIT_SECONDS)
        connection.recv(1)

    prices = [
        {"symbol": "ETH", "price": "3000.5", "block_number": 7},
        {"symbol": "BTC", "price": 64000, "block_number": 8},
    ]
    server.on("/prices/0/9", never, reply("", 503), reply(json.dumps(prices)))
    server.on("/supplies.csv", reply("symbol,supply\nETH,120\nBTC,19\n"))
    stack.deploy("feeds", DAG.format(url=server.url))
    secret = stack.trace("webhook feeds/hook")["secret"]
    stack.shell("trace trigger feeds/ranges --range 0-9")
    payments = {"payments": [{"amount": str(2**256 - 1)}, {"amount": 5}], "cursor": 1_000_000}
    for delivery in ("d-1", "d-2", "d-1"):
        deliver(stack, secret, delivery, payments)

    assert asked.wait(WAIT_SECONDS), stack.report()
    (refused,) = stack.await_tasks("feeds", "forbidden", "failed", 1)  # not an attempt that the kill ends
    stack.kill_part("worker")
    assert deliver(stack, secret, "d-3", {"payments": [{"amount": 7}]})["number"] == 3
    assert deliver(stack, secret, "d-2", payments)["duplicate"]

    stack.await_tasks("feeds", "caps", "completed", 1)
    stack.await_tasks("feeds", "rows", "completed", 3)
    assert rows_of(stack, "caps") == [{"symbol": "BTC", "cap": "1216000.0000"}, {"symbol": "ETH", "cap": "360060.0000"}]
    assert len(rows_of(stack, "prices")) == 2
    assert len(stack.tasks("feeds", "prices")) == 1

    def kept() -> list[tuple[str, int, str]]:
        query = "SELECT delivery, row, amount::text FROM org_default.payments ORDER BY 1, 2"
        return [tuple(row) for row in stack.sql(query, dsn_file=stack.home.data_dsn_file)]

    stack.wait_until(lambda: len(kept()) == 5, "five rows of deliveries")
    large = str(2**256 - 1)
    assert kept() == [("d-1", 1, large), ("d-1", 2, "5"), ("d-2", 1, large), ("d-2", 2, "5"), ("d-3", 1, "7")]

    (task,) = stack.sql("SELECT error, attempt FROM tasks WHERE task_id = $1::uuid", refused)
    assert "127.0.0.1 may not be called" in task["error"]
    assert task["attempt"] == 1, "it is not tried again"
    assert "may not be called" in stack.shell("trace why feeds/forbidden", fine=(0, 1))

    assert {call.headers.get("x-key") for call in server.calls if "prices" in call.target} == {KEY}
    logs = "\n".join(path.read_text(errors="replace") for path in stack.home.logs.glob("*.log"))
    assert KEY not in logs


def test_windows_of_feeds(stack: RealStack, server: FeedServer) -> None:
    """The units of a schedule are seconds, and a delivery has the time at which it came."""
    server.on("/rates", reply('[{"rate": 7}]'))
    stack.deploy("hours", WINDOWS.format(url=server.url))
    secret = stack.trace("webhook hours/hook")["secret"]
    for number, amount in enumerate((5, 6)):
        deliver(stack, secret, f"o-{number}", [{"amount": amount}], "hours/orders")

    def is_there(dataset: str, column: str, value: int) -> bool:
        content = stack.trace(f"datasets {dataset}").get("content")
        return bool(content and content["units"]) and value in [row[column] for row in rows_of(stack, dataset)]

    stack.wait_until(lambda: is_there("monthly_orders", "amount", 11), "both deliveries in a month")
    stack.wait_until(lambda: is_there("hourly_rates", "rate", 7), "rates in an hour")
