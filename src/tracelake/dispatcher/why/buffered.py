"""Why rows that were published are not in the table of a buffered dataset: no sink, waiting batches, dead letters."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.pressure.levels import Level
from tracelake.dispatcher.predicates import awaits_sink, lacks_rows
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.pressure import Pressure
from tracelake.dispatcher.views.words import counted, since
from tracelake.dispatcher.why.answer import Reason, reason

AWAY_SECONDS = 60.0
"""A sink asks every few seconds, also while it waits for something."""
_REASON_LENGTH = 200

_STATE = f"""
    SELECT t.dataset_uuid, d.name, s.at AS asked_at, w.batches, w.oldest, l.letters, n.publish_id, n.dead_at,
           n.dead_line, n.dead_reason, x.key AS unsent, x.tries, x.last_error, trace_now() AS now,
           a.batches AS pinned, a.oldest AS pinned_since, a.task_id
    FROM buffered_tables t JOIN datasets d USING (dataset_uuid) LEFT JOIN sinks_seen s ON true
    CROSS JOIN LATERAL (
        SELECT count(*) AS batches, min(released_at) AS oldest FROM (
            SELECT p.released_at FROM buffer_publishes p
            WHERE p.dataset_uuid = t.dataset_uuid
              AND {awaits_sink("p")}
            ORDER BY p.released_at LIMIT {CAP}) p) w
    CROSS JOIN LATERAL (
        SELECT count(*) AS batches, min(p.created_at) AS oldest,
               (array_agg(p.task_id ORDER BY p.created_at))[1] AS task_id
        FROM (SELECT p.created_at, p.task_id, p.attempt FROM buffer_publishes p
              WHERE p.dataset_uuid = t.dataset_uuid AND p.released_at IS NULL AND p.collected_at IS NULL
              ORDER BY p.created_at DESC LIMIT {CAP}) p
        JOIN tasks k ON k.task_id = p.task_id AND k.attempt = p.attempt AND k.status = 'Running') a
    CROSS JOIN LATERAL (
        SELECT count(*) AS letters FROM (
            SELECT FROM buffer_publishes p
            WHERE p.dataset_uuid = t.dataset_uuid AND {lacks_rows("p")} LIMIT {CAP}) p) l
    LEFT JOIN LATERAL (
        SELECT p.publish_id, p.dead_at, p.dead_line, p.dead_reason FROM buffer_publishes p
        WHERE p.dataset_uuid = t.dataset_uuid AND {lacks_rows("p")}
        ORDER BY p.dead_at DESC, p.publish_id DESC LIMIT 1) n ON true
    LEFT JOIN LATERAL (
        SELECT o.key, o.tries, o.last_error FROM (
            SELECT p.publish_id FROM buffer_publishes p
            WHERE p.dataset_uuid = t.dataset_uuid
              AND {awaits_sink("p")}
            ORDER BY p.released_at LIMIT 1) p
        JOIN outbox o ON o.key = p.publish_id AND o.kind = 'buffer_batch' AND o.status = 'Failed' LIMIT 1) x ON true
    WHERE t.dataset_uuid = ANY($1) ORDER BY d.name"""  # noqa: S608 - constants only


async def buffered_reasons(
    connection: Connection, dataset_uuids: Sequence[UUID], pressure: Pressure
) -> dict[str, list[Reason]]:
    """Finds reasons for buffered datasets, by name; those without one are left out."""
    reasons_by_writer = {}
    for row in await connection.fetch(_STATE, dataset_uuids):
        reasons = [*_letters(row), *_waiting(row), *_full(row, pressure), *_pinned(row)]
        if reasons:
            reasons_by_writer[row["name"]] = reasons
    return reasons_by_writer


def _waiting(row: asyncpg.Record) -> list[Reason]:
    if not row["batches"]:
        return []
    batches = counted(row["batches"], "batch", most=CAP)
    verb, oldest = ("waits", "") if row["batches"] == 1 else ("wait", "the oldest ")
    age, now, refers = since(row["oldest"], row["now"]), row["now"], [("dataset", row["name"])]
    if row["unsent"] is not None:
        refused = f"the queue refused the pointer to {oldest or 'it '}{counted(row['tries'], 'time')}"
        error = row["last_error"] or "no reason given"
        return [
            reason(
                "batch_not_sent",
                lambda it: f"{batches} {it.of} {verb}, {oldest}for {age}, and {refused}: {error}.",
                ("send it again", "trace outbox requeue"),
                references=[*refers, ("outbox", row["unsent"])],
            )
        ]
    last_ask, status = row["asked_at"], ("see the parts of the stack", "trace status")
    if last_ask is None or (now - last_ask).total_seconds() > AWAY_SECONDS:
        last_request = "has ever asked for work" if last_ask is None else f"has asked for {since(last_ask, now)}"
        return [
            reason(
                "no_sink",
                lambda it: f"{batches} {it.of} {verb}, {oldest}for {age}, and no sink {last_request}.",
                status,
                ("start a sink", "trace sink"),
                references=refers,
            )
        ]
    return [
        reason(
            "batches_wait",
            lambda it: (
                f"{batches} {it.of} {verb} for a sink, {oldest}for {age}; a sink was there {since(last_ask, now)} ago."
            ),
            status,
            references=refers,
        )
    ]


def _full(row: asyncpg.Record, pressure: Pressure) -> list[Reason]:
    queue = pressure.queues.get(row["dataset_uuid"])
    if queue is None or queue.level is Level.NONE:
        return []
    bulk = "bulk " if queue.level is Level.BULK else ""
    state = queue.state_words
    return [
        reason(
            "backlog_full",
            lambda it: f"{it.possessive} backlog is {state}, so {bulk}jobs that write it get no new tasks.",
            ("see whom it stops", "trace pressure"),
            references=[("dataset", row["name"])],
        )
    ]


def _pinned(row: asyncpg.Record) -> list[Reason]:
    """Tells of batches of running tasks, which sinks get when the task completes."""
    if not row["pinned"]:
        return []
    task_id, batches = row["task_id"], counted(row["pinned"], "batch", most=CAP)
    wait, oldest = ("waits for its task", "") if row["pinned"] == 1 else ("wait for their tasks", "the oldest ")
    age = since(row["pinned_since"], row["now"])
    return [
        reason(
            "batches_await_task",
            lambda it: f"{batches} {it.of} {wait} to complete, {oldest}for {age}.",
            ("see the task", f"trace why {task_id}"),
            references=[("dataset", row["name"]), ("task", task_id)],
        )
    ]


def _letters(row: asyncpg.Record) -> list[Reason]:
    if not row["letters"]:
        return []
    one, name = row["letters"] == 1, row["name"]
    batches, age = counted(row["letters"], "batch", most=CAP), since(row["dead_at"], row["now"])
    were, newest = ("was", "") if one else ("were", "the newest ")
    line = "" if row["dead_line"] is None else f"line {row['dead_line']}: "
    what = row["dead_reason"].rstrip(".")
    what = what if len(what) <= _REASON_LENGTH else f"{what[:_REASON_LENGTH]} ..."
    return [
        reason(
            "dead_letters",
            lambda it: f"{batches} {it.of} {were} refused, {newest}{age} ago: {line}{what}.",
            ("see what is wrong", f"trace dlq show {row['publish_id']}"),
            *(() if one else (("see them all", f"trace dlq list --dataset {name}"),)),
            ("once it is fixed", f"trace dlq replay --dataset {name}"),
            references=[("dataset", name)],
        )
    ]
