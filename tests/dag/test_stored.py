"""What is read can be deployed: the examples, everything there is, and the oddest texts that a document may hold."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.api.support import User
from tests.bundles.uploading import push
from tests.dag.rendering import to_yaml
from tests.dag.test_reading import EXAMPLES
from tests.support.dags import ORG, deploy
from tests.support.dispatcher import DispatcherHarness
from tracelake.model.dag import Dag


@pytest.fixture
def harness(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[DispatcherHarness]:
    running = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    try:
        yield running
    finally:
        running.stop()


def test_the_examples_deploy_one_after_another(harness: DispatcherHarness) -> None:
    for path in EXAMPLES:
        reply = deploy(harness, path.read_text(encoding="utf-8"))
        assert reply.state == "Active"
        assert deploy(harness, path.read_text(encoding="utf-8")).duplicate


def test_odd_texts_come_back_as_they_were(harness: DispatcherHarness) -> None:
    config = {
        "\x01\x1f\x7f": "\x80\x85\u2028\ufeff\ufffe\uffff",
        "emoji \U0001f600": "'; DROP TABLE jobs; --",
        'quote " and \\': "tab\tline\nend",
        "numbers": [2**63 - 1, -(2**63), 1.7976931348623157e308, 5e-324, -0.0],
    }
    document = {
        "name": "odd",
        "jobs": [
            {"name": "tick", "activation": "source", "source": {"kind": "manual"}},
            {
                "name": "work",
                "activation": "reactive",
                "runtime": "lambda",
                "operator": "udf",
                "udf": {"bundle_id": push(User(harness, ORG, "writer")), "entrypoint": "trace.handler"},
                "config": config,
                "inputs": [{"from": {"job": "tick"}, "where": {"\x01": "\ufffe"}}],
            },
        ],
    }
    deploy(harness, to_yaml(document))
    (row,) = harness.sql("SELECT document FROM dag_versions")
    stored = msgspec.json.decode(row["document"], type=Dag).job("work")
    assert stored.config == config
    assert stored.inputs[0].where == {"\x01": "\ufffe"}
