"""The limits and deadlines of a listener, by themselves: who is given up for whom, and when."""

import errno
import logging
import resource
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.support.configs import listener_limits
from tracelake.errors import TraceError
from tracelake.http.bodies import ADDRESS_SHARE, BodyBudget, declared_size
from tracelake.http.connections import (
    ClientConnection,
    ConnectionTable,
    Stage,
    address_key,
)
from tracelake.stack import descriptors

LIMITS = listener_limits(
    connections=4,
    address_connections=3,
    handshake_seconds=10,
    head_seconds=20,
    body_seconds=40,
    body_bytes_per_second=100,
    idle_seconds=60,
)


def make(address: str, now: float = 0.0, stage: Stage = Stage.HEAD, *, proven: bool = False) -> ClientConnection:
    connection = ClientConnection(address, now, lambda: None)
    connection.enter(stage, now)
    connection.proven = proven
    return connection


def table_of(*connections: ClientConnection) -> ConnectionTable:
    table = ConnectionTable(LIMITS)
    for connection in connections:
        table.add(connection)
    return table


def test_a_limit_of_an_address_and_one_of_the_listener() -> None:
    table = table_of(*(make("a") for _ in range(3)))
    assert (table.reached_limit("a"), table.reached_limit("b")) == ("address", None)
    table.add(make("b"))
    assert (table.reached_limit("a"), table.reached_limit("b")) == ("address", "listener")
    gone = next(iter(table))
    table.remove(gone)
    table.remove(gone)
    assert (len(table), table.reached_limit("a")) == (3, None)


def test_a_flood_pushes_out_itself_first() -> None:
    """The address that holds the most gives way; a single connection of somebody else stays, however old it is."""
    quiet = make("quiet", now=0.0)
    flood = [make("flood", now=float(number)) for number in range(1, 4)]
    table = table_of(quiet, *flood)
    assert table.expendable() is flood[0]
    assert table.expendable("quiet") is quiet


@pytest.mark.parametrize(
    ("stages", "chosen"),
    [
        ([(Stage.IDLE, True), (Stage.HEAD, False), (Stage.SILENT, False)], 1),
        ([(Stage.BODY, True), (Stage.IDLE, True)], 1),
        ([(Stage.HANDLING, False), (Stage.BODY, True)], 1),
        ([(Stage.HANDLING, False), (Stage.HANDLING, True)], None),
    ],
)
def test_whom_nobody_misses_goes_first(stages: list[tuple[Stage, bool]], chosen: int | None) -> None:
    """Unproven before idle before incomplete, the oldest of each; a request that is being handled never."""
    connections = [make("a", float(number), stage, proven=proven) for number, (stage, proven) in enumerate(stages)]
    expected = None if chosen is None else connections[chosen]
    assert table_of(*connections).expendable() is expected


@pytest.mark.parametrize(
    ("stage", "seconds"), [(Stage.SILENT, 10), (Stage.HANDSHAKE, 10), (Stage.HEAD, 20), (Stage.IDLE, 60)]
)
def test_every_stage_has_a_deadline_from_its_beginning(stage: Stage, seconds: float) -> None:
    table = table_of(make("a", 100.0, stage))
    assert not table.overdue(100.0 + seconds)
    assert table.overdue(100.1 + seconds)


def test_a_body_keeps_a_rate_and_ends_in_time() -> None:
    connection = make("a", 0.0, Stage.BODY)
    table = table_of(connection)
    assert not table.overdue(10.0), "the grace of a quarter"
    assert table.overdue(11.0)
    connection.body_bytes = 2_000
    assert not table.overdue(30.0)
    assert table.overdue(30.1)
    connection.body_bytes = 10**9
    assert table.overdue(40.1), "fast, and without an end"


def test_a_handler_takes_its_time() -> None:
    assert not table_of(make("a", 0.0, Stage.HANDLING)).overdue(10_000.0)


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_network_counts_as_one_address(host: str, key: str) -> None:
    assert address_key(host) == key


# --- bodies of callers without a credential


def test_unknown_callers_share_a_budget() -> None:
    budget, refusal = BodyBudget(400), TraceError("rate_limited")
    with ExitStack() as stack:
        for _ in range(ADDRESS_SHARE):
            stack.enter_context(budget.reserve("a", 25, refusal))
        for address, size in (("a", 1), ("b", 301)):
            with pytest.raises(TraceError), budget.reserve(address, size, refusal):
                pass
        stack.enter_context(budget.reserve("b", 300, refusal))
    with budget.reserve("a", 400, refusal):  # everything was given back, and one body always fits
        pass
    assert budget._by_address == {}


@pytest.mark.parametrize(
    ("header", "size"),
    [(None, None), ("", None), ("-1", None), ("1_0", None), ("٣", None), ("0007", 7), ("100", 100), ("9" * 5000, 101)],
)
def test_a_declared_length_is_read_or_cut_off(header: str | None, size: int | None) -> None:
    assert declared_size(header, 100) == size


# --- descriptors


def test_limits_shrink_to_what_the_system_gives(caplog: pytest.LogCaptureFixture) -> None:
    limits = {"public": 512, "task": 1024, "internal": 1024}
    with caplog.at_level(logging.WARNING):
        assert descriptors.share_connections(limits, 4096) == limits
        assert not caplog.records
        shares = descriptors.share_connections(limits, 1024)
    assert sum(shares.values()) <= 1024 - descriptors.RESERVED
    assert shares["task"] == shares["internal"] > shares["public"] > descriptors.LEAST
    assert "ulimit -Hn" in caplog.text


@pytest.mark.parametrize("limits", [(100, 300), (300, 300)])
def test_the_soft_limit_is_raised_to_the_hard_one(limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    record: Callable[[int, tuple[int, int]], None] = lambda _, value: calls.append(value)  # noqa: E731
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", record)
    assert descriptors.raise_limit() == 300
    assert calls == ([(300, 300)] if limits[0] < 300 else [])


def test_a_limit_that_cannot_be_raised_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, __: tuple[int, int]) -> None:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 300))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert descriptors.raise_limit() == 100
