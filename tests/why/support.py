"""Situations that are made by real calls, and the answers about them."""

import shlex
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import click

from tests.api.support import User
from tests.routing.support import Flow
from tracelake.processes.main import trace

# src -> make -> step, which publishes `out`.
CHAIN = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: make, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
  - {name: step, activation: reactive, operator: noop, inputs: [{from: {job: make}}]}
publish:
  out: {from: {job: step}, storage: postgres}
"""


@dataclass
class Situation(Flow):
    def ask(self, path: str) -> Any:
        found = User(self.harness, self.org).get(path)
        check(found)
        return found

    def why_task(self, task_id: UUID | str) -> Any:
        return self.ask(f"/v1/why/task/{task_id}")

    def why_job(self, job: str, dag: str = "d") -> Any:
        return self.ask(f"/v1/why/job/{dag}/{job}")

    def why_dataset(self, name: str = "out") -> Any:
        return self.ask(f"/v1/why/dataset/{name}")

    def ask_sources(self) -> Any:
        return User(self.harness, self.org).get("/v1/sources")["sources"]

    def pressure(self) -> Any:
        return User(self.harness, self.org).get("/v1/pressure")

    def set_running_quota(self, most: int) -> None:
        """As `trace quota` does, and the loop that applies it; 0 is no limit."""
        body = {"org": self.org, "values": {"running_tasks": most}, "defaults": []}
        assert self.harness.service("POST", "/internal/quotas", body).status == 200
        self.harness.run(self.harness.dispatcher.quota_watch.run_once())

    def one(self, job: str) -> UUID:
        (task,) = self.tasks(job)
        found: UUID = task["task_id"]
        return found


def codes(reply: Any) -> list[str]:
    return [item["code"] for item in reply["reasons"]]


def said(reply: Any, code: str) -> Any:
    """The reason with that code; there is exactly one."""
    (found,) = [item for item in reply["reasons"] if item["code"] == code]
    return found


def commands(reason: Any) -> list[str]:
    return [step["command"] for step in reason.get("steps", [])]


def check(reply: Any) -> None:
    """What every answer promises: the worst reason first, whole sentences, commands that the command line takes."""
    order = ["blocked", "waiting", "working", "fine"]
    states = [order.index(item["state"]) for item in reply["reasons"]]
    assert states == sorted(states)
    assert reply["state"] == order[states[0]]
    assert reply["reasons"][0]["text"] in reply["summary"]
    assert reply["summary"].endswith(".")
    for item in reply["reasons"]:
        first = item["text"].split()[0]
        assert first[0].isupper() or first[0].isdigit() or "/" in first, item["text"]
        assert item["text"].endswith("."), item["text"]
        assert "None" not in item["text"]
        for step in item.get("steps", []):
            assert_takes(step["command"])


def assert_takes(command: str) -> None:
    """The command exists and would take these words; capital words stand for what only a person knows."""
    program, name, *words = shlex.split(command)
    assert program == "trace"
    # As the program itself would: a command remembers how its help is asked for.
    context = click.Context(trace, info_name=program, **trace.context_settings)
    known = trace.get_command(context, name)
    assert known is not None, command
    if isinstance(known, click.Group) and words:
        context = click.Context(known, parent=context, info_name=name)
        name, *words = words
        inner = known.get_command(context, name)
        assert inner is not None, command
        known = inner
    stand_ins = {"N": "1", "START-END": "1-2", "TASK_ID": str(UUID(int=1)), "FILE": __file__}
    known.make_context(name, [stand_ins.get(word, word) for word in words], parent=context)
