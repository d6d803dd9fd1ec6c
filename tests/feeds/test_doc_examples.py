"""The DAGs in the pages of feeds are deployable as they stand there, and their jobs read what the pages describe."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from tools.docs import ROOT

from tests.feeds.support import FeedServer, FeedTrial, reply
from tracelake.catalogue import CATALOGUE
from tracelake.catalogue.context import StoredDelivery
from tracelake.dag import Surroundings, read_dag
from tracelake.model.dag import Dag
from tracelake.model.runtime import BUILT_IN
from tracelake.spark.testing import make_unit
from tracelake.worker.feeds import FEEDS


def example(page: str) -> Dag:
    text = (ROOT / f"docs/operators/{page}.md").read_text()
    (found,) = re.findall(r"^```yaml\n(name: .*?)^```", text, re.DOTALL | re.MULTILINE)
    return read_dag(found.encode(), Surroundings(runtimes=BUILT_IN, datasets={}, bundles={}))


def test_every_feed_has_a_page_that_names_its_fields() -> None:
    for name in FEEDS:
        dag = example(name)
        assert name in {job.operator for job in dag.jobs}


def test_the_prices_are_fetched(server: FeedServer, trial: FeedTrial) -> None:
    job = example("http_fetch").job("fetch")
    rows: list[dict[str, Any]] = [
        {"symbol": "ETH", "price": {"usd": "3000.1"}, "supply": "120000000000000000000000000", "ts": 1700000000123},
        {"symbol": "BTC", "price": {"usd": 64000}, "supply": None, "ts": 1700000000124},
        {"symbol": "BAD", "price": {"usd": "n/a"}, "ts": 1700000000124},
    ]
    server.on("/v1/prices", reply(json.dumps({"data": rows, "next": None})))
    config = json.loads(json.dumps(job.config).replace("https://api.example.com", server.url))
    trial.schemas = (None, None)
    trial.run("http_fetch", config, unit=make_unit(None, (1699999800, 1700000100)), secrets={"PRICES_KEY": "key-12345"})
    assert server.calls[0].target == "/v1/prices?at=2023-11-14T22%3A15%3A00Z"
    assert server.calls[0].headers["authorization"] == "Bearer key-12345"
    table = trial.table()
    assert set(table.column_names) == {"symbol", "usd", "supply", "quoted_at", "slot"}
    assert table["symbol"].to_pylist() == ["ETH", "BTC"]
    assert trial.table(1)["reason"].to_pylist() == ["expected a number, received the text 'n/a'"]


def test_the_payments_become_rows(trial: FeedTrial) -> None:
    dag = example("webhook_rows")
    page = (ROOT / "docs/operators/webhook_rows.md").read_text()
    (body,) = re.findall(r"^A body like `(.*?)` becomes", page, re.MULTILINE)
    (publish,) = [entry for entry in dag.publish if entry.name == "payments"]
    trial.schemas = (publish.schema, None)
    trial.deliveries = [StoredDelivery(1, "d-1", datetime(2026, 1, 31, tzinfo=UTC), "", body.encode())]
    trial.run("webhook_rows", dag.job("rows").config, unit=make_unit(None, (0, 1)))
    (row,) = trial.lines().splitlines()
    assert json.loads(row) == {
        "account": "a-1",
        "amount": "12",
        "delivery": "d-1",
        "received_at": "2026-01-31T00:00:00Z",
        "row": 1,
        "settled_at": "2023-11-14T22:13:20Z",
    }


@pytest.mark.parametrize("page", FEEDS)
def test_the_page_lists_every_field(page: str) -> None:
    text = (ROOT / "docs/operators/http_fetch.md").read_text()
    for field in CATALOGUE[page].config_type.__struct_encode_fields__:
        assert f"`{field}`" in text, field
