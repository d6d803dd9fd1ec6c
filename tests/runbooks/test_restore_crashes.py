"""A restore that is killed, or refused, between any two of its steps: the old state with its queue, or the new one."""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.runbooks.loading import CONFIG, ask, databases, dump_of, load, place_of
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake.stack import dumps, leftovers, restore
from tracelake.stack.dumps import BackupError
from tracelake.stack.restore import RestorePlace

_DEAD_LETTER = """
    INSERT INTO dead_letters (message_id, queue, key, body, published_at, receives, died_at, reason)
    VALUES (1, 'q', 'k', '', now(), 1, now(), 'nobody could read it')"""


class KilledError(Exception):
    pass


@dataclass(frozen=True)
class Stopped:
    """A state with two tasks, of which the dump knows one, and a queue with a wake-up and a dead letter."""

    cluster: TestCluster
    place: RestorePlace
    dump: dumps.Dump

    def tasks(self) -> int:
        return len(ask(self.place.owner(self.place.state), "SELECT FROM tasks"))

    def queue(self) -> tuple[int, int]:
        count = "SELECT (SELECT count(*) FROM messages) AS messages, (SELECT count(*) FROM dead_letters) AS dead"
        (row,) = ask(self.place.queue, count)
        return row["messages"], row["dead"]

    def left(self) -> set[str]:
        return databases(self.cluster) & {self.place.restored, self.place.replaced}


@pytest.fixture
def stopped(cluster: TestCluster, state_dsn: str, fresh_queue_dsn: Callable[[], str], tmp_path: Path) -> Stopped:
    queue = fresh_queue_dsn()
    harness = DispatcherHarness.start(state_dsn, queue, tmp_path, CONFIG)
    try:
        job = harness.make_job()["job_id"]
        harness.make_task(job)
        assert harness.relay() == 1
        dump = dump_of(state_dsn, tmp_path / "state.dump")
        harness.make_task(job)
    finally:
        harness.stop()
    found = Stopped(cluster, place_of(cluster, state_dsn, queue), dump)
    ask(found.place.queue, _DEAD_LETTER)
    assert (found.tasks(), found.queue()) == (2, (1, 1))
    return found


def kill_after(step: str, patch: pytest.MonkeyPatch) -> None:
    """The restore does nothing more after this step; least of all does it tidy up."""
    real = getattr(restore, step)
    alive = True

    def died() -> None:
        nonlocal alive
        alive = False
        raise KilledError

    async def then_die(*arguments: Any) -> None:
        await real(*arguments)
        died()

    def then_die_at_once(*arguments: Any) -> None:
        real(*arguments)
        died()

    drop = leftovers.drop

    async def drop_if_alive(*arguments: Any) -> list[str]:
        return await drop(*arguments) if alive else []

    patch.setattr(restore, step, then_die if inspect.iscoroutinefunction(real) else then_die_at_once)
    patch.setattr(leftovers, "drop", drop_if_alive)


def test_a_kill_after_any_step_loses_nothing_and_a_second_run_ends_it(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ("_make", "_load", "_make_safe"):
        with monkeypatch.context() as patch:
            kill_after(step, patch)
            with pytest.raises(KilledError):
                load(stopped.place, stopped.dump)
        assert (stopped.tasks(), stopped.queue()) == (2, (1, 1)), f"{step}: all is as it was"
        assert stopped.left() == {stopped.place.restored}

    with monkeypatch.context() as patch:
        kill_after("_change_names", patch)
        with pytest.raises(KilledError):
            load(stopped.place, stopped.dump)
    assert stopped.tasks() == 1, "the new state"
    assert stopped.left() == {stopped.place.replaced}
    wake_ups = ask(stopped.place.owner(stopped.place.state), "SELECT FROM outbox")
    assert len(wake_ups) == 1, "what is ready is woken, whatever becomes of the queue"

    report = load(stopped.place, stopped.dump)
    assert report.leftovers_dropped == [stopped.place.replaced]
    assert (report.wake_ups, report.messages_dropped) == (1, 2)
    assert (stopped.tasks(), stopped.queue(), stopped.left()) == (1, (0, 0), set())


def test_a_refusal_at_the_last_moment_changes_nothing(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_arguments: Any) -> None:
        raise BackupError("somebody has begun to use the state database")

    monkeypatch.setattr(restore, "_change_names", refuse)
    with pytest.raises(BackupError, match="begun to use"):
        load(stopped.place, stopped.dump)
    assert (stopped.tasks(), stopped.queue(), stopped.left()) == (2, (1, 1), set())


def test_a_queue_that_is_away_is_noticed_before_anything_changes(stopped: Stopped) -> None:
    away = place_of(stopped.cluster, f"postgresql:///{stopped.place.state}", "postgresql:///no_such_database")
    with pytest.raises(BackupError, match="cannot be reached"):
        load(away, stopped.dump)
    assert (stopped.tasks(), stopped.left()) == (2, set())


def test_a_queue_that_goes_away_after_the_change_is_told_apart(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_arguments: Any, **_options: Any) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(restore, "migrate_dsn", gone)
    with pytest.raises(BackupError, match="the state is restored, but the queue could not be emptied"):
        load(stopped.place, stopped.dump)
    assert (stopped.tasks(), stopped.queue(), stopped.left()) == (1, (1, 1), set())


def test_a_start_drops_or_names_what_a_killed_restore_left(stopped: Stopped) -> None:
    state, cluster = stopped.place.state, stopped.cluster.cluster
    ask(stopped.place.administer, f'CREATE DATABASE "{stopped.place.replaced}"')

    (named,) = asyncio.run(leftovers.clear(None, stopped.place.owner(state)))
    assert f"The database {stopped.place.replaced} may be" in named
    assert stopped.left(), "on a server of somebody else nothing is dropped"

    assert asyncio.run(leftovers.drop_from(cluster, f"{state}_no_such")) == []
    (dropped,) = asyncio.run(leftovers.drop_from(cluster, state))
    assert dropped.startswith(f"Dropped the database {stopped.place.replaced} (")
    assert stopped.left() == set()
    assert asyncio.run(leftovers.drop_from(cluster, state)) == []


def test_what_may_be_all_that_there_is_stays(stopped: Stopped) -> None:
    lost = f"{stopped.place.state}_lost"
    ask(stopped.place.administer, f'CREATE DATABASE "{leftovers.replaced(lost)}"')
    assert asyncio.run(leftovers.drop_from(stopped.cluster.cluster, lost)) == []
    assert leftovers.replaced(lost) in databases(stopped.cluster)
