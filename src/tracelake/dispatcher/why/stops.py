"""What stops tasks from being made or from running: a pause, a full queue downstream, a quota, a limit."""

from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.limits import FUNCTIONS, functions_key
from tracelake.dispatcher.quotas.book import Overuse
from tracelake.dispatcher.views.pressure import Cause
from tracelake.dispatcher.why.answer import Reason, Sentence, Step, reason

QUOTA_STEPS: tuple[Step, ...] = (("see all quotas", "trace quota"), ("see what runs", "trace tasks --status Running"))
"""About the quota of running tasks: its places may be taken by tasks of any job of the org."""


_AT_QUOTA = "SELECT FROM limits WHERE limit_key = $1 AND used >= max_running"


async def find_limit(connection: Connection, held_by: str | None, org_id: UUID) -> str:
    """The key of the limit that keeps a held task: functions wait for their operator's also where the quota of their
    org is what is full."""
    key = functions_key(org_id)
    if held_by == FUNCTIONS and await connection.fetchrow(_AT_QUOTA, key) is not None:
        return key
    return held_by or ""


def limit_words(limit_key: str, limit: asyncpg.Record | None, job: str) -> str:
    """What a task waits for a place under: a limit of the job or its operator, or the quota of its org."""
    kind, _, rest = limit_key.partition(":")
    names = {
        "operator": f"the limit of the operator {rest}",
        "org": "your organisation's quota of running tasks",
        "org-functions": "your organisation's quota of running functions",
    }
    used = "" if limit is None or limit["max_running"] is None else f" ({limit['used']} of {limit['max_running']})"
    return names.get(kind, f"the limit of {job}") + used


def paused(name: str, text: Sentence) -> Reason:
    return reason("source_paused", text, ("resume it", f"trace resume {name}"), references=[("job", name)])


def pressed(cause: Cause, text: Sentence) -> Reason:
    name = cause.dataset or cause.name
    steps = (("see all queues", "trace pressure"), ("see why it is slow", f"trace why {name}"))
    return reason("pressure", text, *steps, references=[("dataset" if cause.dataset else "job", name)])


def over_quota(overuse: Overuse, effect: str) -> Reason:
    use = f"has {overuse.used:,} queued tasks" if overuse.kind == "queued_tasks" else f"stores {overuse.used:,} bytes"
    text = f"organisation {use} and its quota is {overuse.quota:,}, so {effect}."
    return reason("over_quota", lambda it: f"{it.possessive} {text}", ("see all quotas", "trace quota"))
