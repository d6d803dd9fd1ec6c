"""Writers of a buffered dataset in other DAGs: with a grant of the owner, and not without."""

import pytest

from tests.deploy.support import Text, task
from tests.support.dags import activate, deploy, job_id, output
from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tracelake.errors import TraceError

SCHEMA = {"columns": [{"name": "k", "type": "text", "nullable": False}], "unique": ["k"]}
ENTRY = {"storage": "postgres", "write_mode": "buffered"}


def owner(*writers: str) -> str:
    text = Text("owner").source().job("w", "tick")
    text.publish["rows"] = {"from": {"job": "w"}, **ENTRY, "schema": SCHEMA, "writers": list(writers)}
    return str(text)


def guest(seconds: int = 0) -> str:
    text = Text("guest").source().job("g", "tick", seconds=seconds).job("reader", "dataset.rows")
    text.publish["rows"] = {"from": {"job": "g"}, **ENTRY}
    return str(text)


def codes(harness: DispatcherHarness, text: str) -> list[str]:
    with pytest.raises(TraceError) as error:
        deploy(harness, text)
    return [problem.code for problem in error.value.details["problems"]]


def publish(harness: DispatcherHarness, dag: str, name: str) -> Reply:
    """A batch of a task of the job."""
    task_id = str(task(harness, job_id(harness, dag, name)))
    lease = harness.claim(task_id).body
    batch_uri = f"{lease['task']['outputs'][0]['storage']['buffer_prefix']}rows.jsonl"
    harness.run(harness.objects.put(batch_uri, b'{"k":"a"}\n'))
    body = fence(task_id, lease, dedupe_scope="rows", batch_uri=batch_uri)
    return harness.task("buffer-publish", lease["capability_token"], body)


def test_a_grant_lets_another_dag_write(harness: DispatcherHarness) -> None:
    deploy(harness, owner())
    assert codes(harness, guest()) == ["dataset_owned"]
    deploy(harness, owner("guest"), activate=False)
    assert codes(harness, guest()) == ["dataset_owned"], "a grant counts when its version is active"
    activate(harness, "owner", 2)
    reply = deploy(harness, guest())
    (change,) = [item for item in reply.plan.datasets if item.dataset == "rows"]
    assert (change.change, change.because) == ("unchanged", "it belongs to the DAG owner")
    assert output(harness, "guest", "g") == output(harness, "owner", "w")
    (row,) = harness.sql("SELECT dag_name, published FROM datasets WHERE name = 'rows'")
    assert (row["dag_name"], row["published"]) == ("owner", True)
    # The owner's schema is the only one, and follows the owner alone.
    assert (
        len(harness.sql("SELECT FROM dataset_versions WHERE dataset_uuid = $1", output(harness, "guest", "g")[0])) == 1
    )


def test_a_grant_that_is_taken_back(harness: DispatcherHarness) -> None:
    deploy(harness, owner("guest"))
    deploy(harness, guest())
    reply = deploy(harness, owner())
    assert reply.plan.notes == ["rows: guest/g may not write it any more, and its batches are refused."]
    assert codes(harness, guest(seconds=1)) == ["dataset_owned"]
    assert publish(harness, "owner", "w").status == 200
    refusal = publish(harness, "guest", "g")
    assert (refusal.status, refusal.code) == (403, "dataset_forbidden")
    assert "`publish.rows.writers`" in refusal.body["error"]["message"]


def test_circles_through_a_granted_writer(harness: DispatcherHarness) -> None:
    deploy(harness, owner("guest"))
    text = Text("guest").source().job("g", "tick").job("back", "dataset.rows")
    text.publish["rows"] = {"from": {"job": "g"}, **ENTRY}
    text.published("seen", "back")
    deploy(harness, str(text))
    closing = Text("owner").source().job("w", "dataset.seen")
    closing.publish["rows"] = {"from": {"job": "w"}, **ENTRY, "schema": SCHEMA, "writers": ["guest"]}
    assert codes(harness, str(closing)) == ["cycle"]
