"""When the session of a worker begins and ends, with sessions that only pretend."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import wait_until
from tracelake.spark import gateway, session
from tracelake.spark.session import SharedSession, SparkConfig


class PretendSession:
    def __init__(self) -> None:
        self.ended = threading.Event()


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PretendSession]]:
    sessions: list[PretendSession] = []

    def open_one(_config: SparkConfig) -> Any:
        sessions.append(PretendSession())
        return sessions[-1]

    monkeypatch.setattr(session, "open_session", open_one)
    monkeypatch.setattr(gateway, "is_alive", lambda one: not one.ended.is_set())
    monkeypatch.setattr(gateway, "end", lambda one: one.ended.set())
    yield sessions
    assert all(one.ended.is_set() for one in sessions)


def test_an_idle_session_ends_and_the_next_user_opens_another(tmp_path: Path, sessions: list[PretendSession]) -> None:
    shared = SharedSession(SparkConfig(tmp_path / "session"), idle_seconds=0.02)
    with shared.use():
        pass
    wait_until(sessions[0].ended.is_set, "the end of the idle session")
    with shared.use():
        assert len(sessions) == 2
    shared.close()


def test_a_session_does_not_end_while_somebody_uses_it(tmp_path: Path, sessions: list[PretendSession]) -> None:
    shared = SharedSession(SparkConfig(tmp_path / "session"), idle_seconds=0.0)
    with shared.use():
        with shared.use():
            pass
        shared._end_idle()  # a timer that fired as this user came
        assert not sessions[0].ended.is_set()
    wait_until(sessions[0].ended.is_set, "the end of the idle session")
    shared.close()


def test_a_session_without_an_idle_time_stays(tmp_path: Path, sessions: list[PretendSession]) -> None:
    shared = SharedSession(SparkConfig(tmp_path / "session"))
    with shared.use():
        pass
    with shared.use():
        pass
    assert len(sessions) == 1
    shared.close()
