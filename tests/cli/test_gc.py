"""`trace gc`: round after round until nothing is left, and the plan as a table and as JSON."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from tracelake.cli import gc, session
from tracelake.wire import routes
from tracelake.wire.retention import GcPlan, GcReply, GcRows, GcVersion

PLAN = GcPlan(
    rows=[
        GcRows(kind="task_attempts", rows=50_000, more=True, kept_days=30, oldest=datetime(2026, 1, 2, tzinfo=UTC)),
        GcRows(kind="triggers", rows=0, more=False, kept_days=30),
    ],
    versions=[GcVersion(org="acme", dag="pools", version=3)],
    jobs_to_sweep=2,
    generations_to_delete=0,
)


class Client:
    def __init__(self, *rounds: GcReply) -> None:
        self.rounds = list(rounds)

    async def call(self, route: object) -> GcPlan | GcReply:
        return PLAN if route is routes.PLAN_GC else self.rounds.pop(0)

    async def close(self) -> None:
        pass


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, rounds: tuple[GcReply, ...] = ()) -> str:
    client = Client(*rounds)
    stack: Any = SimpleNamespace(internal_client=lambda: client)
    monkeypatch.setattr(session, "find_stack", lambda _home, _context: stack)
    result = CliRunner().invoke(gc.command, list(arguments))
    assert result.exit_code == 0, result.output
    assert not client.rounds
    return result.output


def test_the_plan_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line.split() for line in run(monkeypatch, "--plan").splitlines()]
    assert ["task", "attempts", "50,000+", "30", "d", "2026-01-02"] in lines
    assert ["version", "3", "of", "acme/pools", "1"] in lines
    assert ["jobs", "of", "removed", "versions", "2"] in lines
    assert json.loads(run(monkeypatch, "--plan", "--json"))["versions"] == [
        {"org": "acme", "dag": "pools", "version": 3}
    ]


def test_rounds_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = (
        GcReply(removed={"triggers": 1_000}, more=True),
        GcReply(removed={"triggers": 5, "task_attempts": 1}, more=False),
    )
    assert run(monkeypatch, rounds=rounds) == "Removed: 1 task attempts, 1,005 triggers.\n"
    assert json.loads(run(monkeypatch, "--json", rounds=rounds)) == {
        "removed": {"triggers": 1_005, "task_attempts": 1},
        "more": False,
    }
    assert (
        run(monkeypatch, rounds=(GcReply(removed={}, more=False),))
        == "There is nothing to remove: everything is within its retention.\n"
    )
