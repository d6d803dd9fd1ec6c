"""`trace quota`: the table and JSON for users, and the operator's list and changes."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from tracelake.cli import quota, session
from tracelake.wire import routes
from tracelake.wire.quotas import QuotaChange, QuotaReply, QuotaRequest, QuotaRow, QuotasReply

REPLY = QuotaReply(
    org="acme",
    weight=2,
    quotas=[
        QuotaRow(kind="queued_tasks", limit=5000, used=5000, own=True, exceeded=True),
        QuotaRow(kind="running_tasks", used=3),
        QuotaRow(kind="units_per_range", limit=100_000),
    ],
)


class OperatorClient:
    def __init__(self) -> None:
        self.requests: list[QuotaRequest] = []

    async def call(self, route: object, request: QuotaRequest | None = None) -> QuotasReply | QuotaChange:
        if request is None:
            assert route is routes.LIST_QUOTAS
            return QuotasReply(orgs=[REPLY])
        self.requests.append(request)
        return QuotaChange(quota=REPLY, changed_at=datetime(2026, 1, 2, tzinfo=UTC))

    async def close(self) -> None:
        pass


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, status: int = 0) -> tuple[str, OperatorClient]:
    client = OperatorClient()
    stack: Any = SimpleNamespace(internal_client=lambda: client)
    monkeypatch.setattr(session, "find_stack", lambda _home, _context: stack)
    monkeypatch.setattr("tracelake.cli.session.Session.run", lambda *_: REPLY)
    result = CliRunner().invoke(quota.command, list(arguments))
    assert result.exit_code == status, result.output
    return result.output, client


def test_users_see_use_against_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    output, _ = run(monkeypatch)
    lines = [line.split() for line in output.splitlines()]
    assert ["weight", "2"] in lines
    assert ["queued", "tasks", "5,000", "5,000", "operator", "used", "up"] in lines
    assert ["running", "tasks", "3", "no", "limit", "default"] in lines
    assert ["units", "per", "range", "100,000", "default"] in lines
    shown = json.loads(run(monkeypatch, "--json")[0])
    assert shown["quotas"][0] == {
        "kind": "queued_tasks",
        "limit": 5000,
        "used": 5000,
        "own": True,
        "exceeded": True,
    }


def test_the_operator_lists_and_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "acme" in run(monkeypatch, "list")[0]
    assert json.loads(run(monkeypatch, "list", "--json")[0])["orgs"][0]["weight"] == 2
    output, client = run(
        monkeypatch, "set", "acme", "--weight", "2", "--queued-tasks", "5000", "--default", "running-tasks"
    )
    assert client.requests == [
        QuotaRequest(org="acme", values={"weight": 2.0, "queued_tasks": 5000.0}, defaults=["running_tasks"])
    ]
    assert "5,000" in output
    assert json.loads(run(monkeypatch, "set", "acme", "--weight", "2", "--json")[0])["quota"]["org"] == "acme"


def test_a_change_of_nothing_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    output, client = run(monkeypatch, "set", "acme", status=2)
    assert "at least one quota" in output
    assert not client.requests
    run(monkeypatch, "set", "acme", "--weight", "0", status=2)
