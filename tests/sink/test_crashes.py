"""A sink that dies before and after every step, by both ways of loading, leaves nothing twice and nothing out."""

import pytest

from tests.sink.conftest import MakeFlow
from tests.sink.flow import BufferFlow

DIRECT = ("received", "fetched", "committing", "staged", "merged", "committed", "announced", "acked")
LARGE = ("received", "staging", "loading", "loaded", "committing", "merged", "committed", "announced", "acked")


def left_right(flow: BufferFlow) -> None:
    assert flow.rows("key", "value") == [(1, "b"), (2, "c")]
    assert flow.open_batches() == 0
    assert flow.letters() == []
    units = {f"c:{number}" for number in flow.commits().values()}
    assert set(flow.reader_units()) == units
    assert len(flow.reader_units()) == len(units)


@pytest.mark.parametrize(
    ("large", "moment"), [*((False, moment) for moment in DIRECT), *((True, moment) for moment in LARGE)]
)
def test_a_sink_that_dies_anywhere(make_flow: MakeFlow, large: bool, moment: str) -> None:
    flow = make_flow(large=large)
    flow.publish([{"key": 1, "value": "a"}])
    flow.publish([{"key": 1, "value": "b"}, {"key": 2, "value": "c"}])
    flow.deaths.append(moment)
    flow.sink()
    assert not flow.deaths, "it died there"
    flow.come_back()
    flow.sink()
    left_right(flow)


@pytest.mark.parametrize("moment", ["fetched", "rejected", "acked"])
def test_a_sink_that_dies_while_it_refuses(flow: BufferFlow, moment: str) -> None:
    flow.publish([{"key": "x"}])
    flow.deaths.append(moment)
    flow.sink()
    assert not flow.deaths, "it died there"
    flow.come_back()
    flow.sink()
    assert [letter["dead_code"] for letter in flow.letters()] == ["row_invalid"]
    assert (flow.rows(), flow.open_batches()) == ([], 0)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("what", ["answer", "data", "objects", "dispatcher"])
def test_whatever_is_away_is_waited_for_and_costs_no_receive(make_flow: MakeFlow, what: str, large: bool) -> None:
    flow = make_flow(large=large)
    flow.publish([{"key": 1, "value": "a"}])
    flow.publish([{"key": 1, "value": "b"}, {"key": 2, "value": "c"}])
    flow.away[what] = 1 if large and what == "objects" else 12
    assert flow.sink() == 2
    assert flow.waited >= 12 or large
    left_right(flow)


def test_spark_that_fails_is_done_without(make_flow: MakeFlow) -> None:
    flow = make_flow(large=True)
    flow.publish([{"key": 1, "value": "b"}])
    flow.publish([{"key": 2, "value": "c"}])
    flow.away["spark"] = 1
    assert flow.sink() == 2, "in the same round: no receive is lost by it"
    left_right(flow)


def test_a_batch_that_is_in_the_table_is_no_dead_letter_however_often_it_came(flow: BufferFlow) -> None:
    flow.publish([{"key": 1, "value": "b"}, {"key": 2, "value": "c"}])
    for number in range(9):
        flow.deaths.append("committed" if number == 8 else "committing")
        flow.sink()
        flow.come_back()
    assert not flow.deaths
    assert flow.reader_units() == [], "nobody came to tell"
    flow.sink()
    left_right(flow)


@pytest.mark.parametrize("what", ["TRUNCATE", "DROP TABLE"])
def test_staging_that_is_gone_is_no_empty_batch(make_flow: MakeFlow, what: str) -> None:
    """Postgres empties unlogged tables when it comes up after a crash."""
    flow = make_flow(large=True)
    flow.publish([{"key": 1, "value": "b"}, {"key": 2, "value": "c"}])

    def lose() -> None:
        ((name,),) = flow.data_sql("SELECT name FROM buffer_staging ORDER BY created_at DESC LIMIT 1")
        flow.data_sql(f'{what} staging."{name}"')

    flow.hooks["committing"] = lose
    assert flow.sink() == 1
    left_right(flow)


def test_rows_that_the_database_refuses_cost_their_batch_alone(make_flow: MakeFlow) -> None:
    for large in (False, True):
        flow = make_flow(large=large)
        flow.sink()
        flow.rows()
        flow.data_sql(f"ALTER TABLE {flow.table} ADD CHECK (key < 100)")
        flow.publish([{"key": 1, "value": "b"}])
        bad = flow.publish([{"key": 3, "value": "x"}, {"key": 100, "value": "x"}])
        flow.publish([{"key": 2, "value": "c"}])
        assert flow.sink() == 3
        (letter,) = flow.letters()
        assert (str(letter["publish_id"]), letter["dead_code"]) == (bad["publish_id"], "rows_refused")
        assert flow.rows() == [(1, "b"), (2, "c")]
