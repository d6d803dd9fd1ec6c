"""Tables that change while batches wait, while sinks work, and while one of them has not heard of it."""

import secrets
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import msgspec
import pytest

from tests.sink.conftest import MakeFlow
from tests.sink.flow import BufferFlow
from tests.sink.support import PLAIN, dataset
from tests.sink.test_store import ask
from tests.support import dags
from tests.support.postgres import TestCluster, wait_until
from tracelake.model.buffered import table_name
from tracelake.sink.store import TableStore
from tracelake.storage import table_ddl
from tracelake.storage.data_connection import Run
from tracelake.wire.buffers import BufferedDataset

MEMO = "name: memo, type: text"


@pytest.mark.parametrize("large", [False, True])
def test_batches_of_every_version_wait_while_the_schema_grows(make_flow: MakeFlow, large: bool) -> None:
    flow = make_flow(large=large)
    flow.publish([{"key": 1, "value": "a"}])
    flow.sink()
    flow.publish([{"key": 1, "value": "b"}, {"key": 2, "value": "c"}])
    flow.deploy(MEMO)
    flow.publish([{"key": 2, "value": "d", "memo": "x"}])
    flow.deploy(MEMO, "name: size, type: int16", indexes="[[memo, size]]")
    flow.publish([{"key": 3, "size": 7}])
    flow.deploy(MEMO, "name: size, type: int256")
    flow.publish([{"key": 4, "size": 2**200}])
    assert flow.sink() == 4
    assert flow.rows("key", "value", "memo", "size::text") == [
        (1, "b", None, None),
        (2, "d", "x", None),
        (3, None, None, "7"),
        (4, None, None, str(2**200)),
    ]
    assert flow.letters() == []
    assert set(flow.reader_units()) == {f"c:{number}" for number in flow.commits().values()}


def test_going_back_leaves_the_table_and_takes_what_still_comes(flow: BufferFlow) -> None:
    flow.deploy(MEMO)
    task_id, lease = flow.attempt("left")
    flow.publish([{"key": 1, "value": "a", "memo": "x"}])
    dags.activate(flow.harness, "transfers", "previous", org=flow.org)
    flow.publish([{"key": 2, "value": "b"}], "right")
    flow.publish_by(task_id, lease, [{"key": 3, "memo": "y"}])
    flow.flow.complete(task_id, lease)
    refused = flow.publish([{"key": 4, "other": 1}])
    assert flow.sink() == 4
    assert flow.rows("key", "value", "memo") == [(1, "a", "x"), (2, "b", None), (3, None, "y")]
    assert [str(letter["publish_id"]) for letter in flow.letters()] == [refused["publish_id"]]


def test_a_sink_with_the_old_schema_beside_one_with_the_new(flow: BufferFlow) -> None:
    old = flow.dataset
    flow.publish([{"key": 1, "value": "a"}])
    flow.sink()
    flow.deploy(MEMO, indexes="[[value]]")
    new = flow.dataset
    assert new.revision > old.revision
    flow.publish([{"key": 2, "memo": "x"}])
    flow.sink(known=new)
    made = _indexes(flow)
    flow.publish([{"key": 1, "value": "b"}, {"key": 2, "value": "c"}, {"key": 3}])
    flow.sink(known=old)
    assert (flow.dataset, _indexes(flow), len(made)) == (new, made, 4)
    assert flow.rows("key", "value", "memo") == [(1, "b", None), (2, "c", None), (3, None, None)], "no row is of two"
    assert flow.letters() == []


def test_an_index_that_rows_do_not_fit_is_left_out_and_the_table_goes_on(
    flow: BufferFlow, caplog: pytest.LogCaptureFixture
) -> None:
    flow.publish([{"key": 1, "value": secrets.token_hex(4000)}])
    flow.sink()
    flow.deploy(MEMO, indexes="[[value], [memo]]")
    flow.publish([{"key": 2, "value": "b", "memo": "x"}])
    assert flow.sink() == 1
    assert flow.rows("key", "memo") == [(1, None), (2, "x")]
    assert len(_indexes(flow)) == 4, "of the key, of the commit, of the batch, and of `memo`"
    assert [record.levelname for record in caplog.records if record.message == "an index cannot be made"] == ["ERROR"]


def test_the_first_tables_of_an_org_are_made_by_two_at_once(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes while the first has made the schema that both are in, and nobody sees it yet."""
    dsn, halfway, go_on = cluster.fresh("data"), Event(), Event()
    first, second = (msgspec.structs.replace(dataset(PLAIN, name=name), org="new") for name in ("first", "second"))
    keep = table_ddl.apply_schema

    def wait(run: Run, of: BufferedDataset, lock_seconds: float) -> bool:
        changed = keep(run, of, lock_seconds)
        if of == first:
            halfway.set()
            assert go_on.wait(30)
        return changed

    monkeypatch.setattr(table_ddl, "apply_schema", wait)

    def make(of: BufferedDataset) -> bool:
        store = TableStore(dsn)
        try:
            return store.follow(of)
        finally:
            store.close()

    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(make, first)
        assert halfway.wait(30)
        two = threads.submit(make, second)
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        wait_until(lambda: ask(dsn, waiting) != [], "the second one waits")
        go_on.set()
        assert (one.result(30), two.result(30)) == (True, True)


def _indexes(flow: BufferFlow) -> list[tuple[str, ...]]:
    name = table_name(flow.dataset.dataset_uuid)
    return flow.data_sql(f"SELECT indexname FROM pg_indexes WHERE tablename = '{name}' ORDER BY 1")
