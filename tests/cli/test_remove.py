"""`trace remove`: the plan, the typed name, removing, restoring, purging."""

import sys
from datetime import timedelta

import msgspec
import pytest

from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tests.cli.samples import NOW
from tracelake.cli import remove
from tracelake.errors import TraceError
from tracelake.wire.platform import WhoAmI
from tracelake.wire.removal import DagReader, HeldDataset, RemovalPlan, RemovalReply, RemovedDag, RemovedDagsReply

PLAN = RemovalPlan(
    dag="pools",
    versions=3,
    active_version=3,
    jobs=4,
    open_tasks=12,
    more_tasks=False,
    datasets=[
        HeldDataset(name="swaps", storage="s3", generations=2, rows=12_345, bytes=3 * 1024**2),
        HeldDataset(name="alerts", storage="buffered", generations=1, bytes=48 * 1024),
        HeldDataset(name="ticks", storage="none", generations=1),
    ],
    sources=["head (always_on)", "clock (cron)"],
    webhooks=["pools/prices"],
    functions=["whales"],
    readers=[],
    kept_days=7,
)
READ = msgspec.structs.replace(PLAN, readers=[DagReader(dataset="swaps", dag="reports", job="hourly", how="reads")])
UNTIL = NOW + timedelta(days=7)
REMOVED = RemovalReply(dag="pools", state="removed", removed_at=NOW, restorable_until=UNTIL)
PURGING = RemovalReply(dag="pools", state="purging", removed_at=NOW)
LISTED = RemovedDagsReply(
    dags=[
        RemovedDag(dag="pools", removed_at=NOW, removed_by="ann", state="removed", restorable_until=UNTIL, datasets=2),
        RemovedDag(dag="old", removed_at=NOW, removed_by="bob", state="purging", datasets=1),
    ]
)
GET_PLAN, REMOVE = "GET /v1/dags/pools/removal", "POST /v1/dags/pools/remove"
WHOAMI, ADMIN = "GET /v1/whoami", WhoAmI(subject="ann", org="acme", roles=["admin"])
PURGE, RESTORE, LIST = "POST /v1/dags/pools/purge", "POST /v1/dags/pools/restore", "GET /v1/removed-dags"


def calls(api: FakeApi) -> list[str]:
    return [f"{call.method} {call.path}" for call in api.calls]


def test_the_plan_says_what_goes_and_who_needs_it(trace: Trace, api: FakeApi) -> None:
    api.answers[GET_PLAN] = [PLAN, READ, PLAN]
    shown = trace("remove", "pools", "--plan", columns=80)
    assert shown.status == 0
    for text in ("pools: 3 versions, version 3 is active, 4 jobs", "open tasks: 12", "webhooks: pools/prices"):
        assert text in shown.out
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["swaps", "s3", "2", "12,345", "3.0", "MiB"] in rows
    assert ["ticks", "events", "only", "1"] in rows
    assert "restored for 7 days" in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    shown = trace("remove", "pools", "--plan")
    assert ["reports/hourly", "reads", "swaps"] in [line.split() for line in shown.out.splitlines()]
    assert "cannot be removed while other DAGs need it" in shown.out
    assert msgspec.json.decode(trace("remove", "pools", "--plan", "--json").out, type=RemovalPlan) == PLAN
    assert set(calls(api)) == {GET_PLAN}, "nothing was changed"


def test_it_is_removed_after_its_name_was_typed(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.answers |= {GET_PLAN: PLAN, REMOVE: REMOVED}
    monkeypatch.setattr(remove, "_is_asked", lambda _session: True)
    shown = trace("remove", "pools", stdin=b"pool\n")
    assert (shown.status, calls(api)) == (1, [GET_PLAN])
    assert "nothing was changed" in shown.err
    shown = trace("remove", "pools", stdin=b"pools\n")
    assert shown.status == 0
    assert "swaps" in shown.out, "what goes is shown before the question"
    assert "pools is removed." in shown.out
    assert "trace remove --undo pools" in shown.out
    assert calls(api)[-1] == REMOVE


def test_without_a_terminal_it_wants_yes(trace: Trace, api: FakeApi) -> None:
    api.answers |= {GET_PLAN: PLAN, REMOVE: REMOVED}
    shown = trace("remove", "pools")
    assert (shown.status, calls(api)) == (2, [GET_PLAN])
    assert "--yes" in shown.err
    assert trace("remove", "pools", "--yes").status == 0
    assert msgspec.json.decode(trace("remove", "pools", "--yes", "--json").out, type=RemovalReply) == REMOVED


def test_a_dag_in_use_is_not_asked_about(trace: Trace, api: FakeApi) -> None:
    api.answers[GET_PLAN] = READ
    api.answers[REMOVE] = TraceError("dag_in_use", "Other DAGs need datasets of pools: reports/hourly reads swaps.")
    shown = trace("remove", "pools")
    assert (shown.status, shown.out) == (1, "")
    assert "reports/hourly reads swaps" in shown.err


def test_a_removed_one_says_so_again(trace: Trace, api: FakeApi) -> None:
    api.answers[GET_PLAN] = TraceError("dag_removed", "The DAG pools was removed.")
    api.answers[REMOVE] = msgspec.structs.replace(REMOVED, duplicate=True)
    shown = trace("remove", "pools")
    assert "pools was removed before." in shown.out


def test_it_comes_back(trace: Trace, api: FakeApi) -> None:
    api.answers[RESTORE] = [
        RemovalReply(dag="pools", state="restored", version=3),
        RemovalReply(dag="pools", state="restored", duplicate=True),
    ]
    assert "pools is back with version 3" in trace("remove", "--undo", "pools").out
    assert "pools is not removed." in trace("remove", "--undo", "pools").out


def test_a_purge_removes_first_and_waits_if_told_to(trace: Trace, api: FakeApi) -> None:
    api.answers |= {GET_PLAN: PLAN, WHOAMI: ADMIN, REMOVE: REMOVED, PURGE: PURGING}
    assert "pools is being deleted." in trace("remove", "--purge", "pools", "--yes").out
    assert calls(api) == [GET_PLAN, WHOAMI, REMOVE, PURGE]
    api.answers[LIST] = [LISTED, LISTED, RemovedDagsReply(dags=LISTED.dags[1:])]
    waited = trace("remove", "--purge", "pools", "--yes", "--wait").out.splitlines()
    assert waited[0] == "Deleting the rows, files and tables of pools; waiting until all are gone ..."
    assert waited[1] == "pools is deleted. Its names are free."
    api.answers[GET_PLAN] = TraceError("dag_removed", "The DAG pools was removed.")
    api.calls.clear()
    assert trace("remove", "--purge", "pools", "--yes").status == 0
    assert calls(api) == [GET_PLAN, PURGE], "it was removed before"


def test_who_may_not_purge_removes_nothing(trace: Trace, api: FakeApi) -> None:
    api.answers |= {GET_PLAN: PLAN, WHOAMI: msgspec.structs.replace(ADMIN, roles=["writer"])}
    refused = trace("remove", "--purge", "pools", "--yes")
    assert (refused.status, "role_forbidden" in refused.err) == (1, True)
    assert calls(api) == [GET_PLAN, WHOAMI]


def test_what_was_removed_is_listed(trace: Trace, api: FakeApi) -> None:
    api.answers[LIST] = [LISTED, LISTED, RemovedDagsReply(dags=[])]
    shown = trace("remove", "--list", columns=120)
    assert [line.split()[:2] for line in shown.out.splitlines()[1:3]] == [["pools", "removed"], ["old", "purging"]]
    assert "trace remove --undo pools" in shown.out
    assert msgspec.json.decode(trace("remove", "--list", "--json").out, type=RemovedDagsReply) == LISTED
    assert "No DAG was removed" in trace("remove", "--list").out


@pytest.mark.parametrize(
    "arguments", [(), ("pools", "--list"), ("pools", "--undo", "--purge"), ("pools", "--wait"), ("--undo",)]
)
def test_what_does_not_go_together_is_refused(trace: Trace, api: FakeApi, arguments: tuple[str, ...]) -> None:
    assert trace("remove", *arguments).status == 2
    assert api.calls == []


def test_nobody_is_asked_on_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert not remove._is_asked(False)
