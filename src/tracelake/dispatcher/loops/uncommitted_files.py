"""The collector: files that an attempt left and nobody committed go after their retention, and its scratch files with
them. Committed ones never do.

It walks through tasks in the order of their ids, which is that of their making, so it looks at each once and costs
nothing where nothing is made; what it meets too early, and what goes on after it passed, it looks at again later. Which
files are committed is the registry's word: everything that any manifest names stays, also of older revisions.

Files go before the position moves: after a crash the same page is looked at again, and finds nothing.
"""

import logging
from datetime import timedelta
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.model.job import Storage
from tracelake.ports import ObjectStore

logger = logging.getLogger(__name__)

PAGE = 200
_KEPT_IN_FILES = (Storage.S3, Storage.BUFFERED)

# Ids of tasks begin with the milliseconds of their making.
_NEXT = """
    SELECT t.task_id, t.job_id, t.attempt, t.finished_at < trace_now() - $1::interval AS over
    FROM collector c JOIN tasks t ON t.task_id > c.position AND t.task_id < (
        lpad(to_hex((extract(epoch FROM trace_now() - $1::interval) * 1000)::bigint), 12, '0')
        || '00000000000000000000')::uuid
    ORDER BY t.task_id LIMIT $2"""

_DUE = """
    SELECT t.task_id, t.job_id, t.attempt, t.finished_at < trace_now() - $1::interval AS over
    FROM collect_later l JOIN tasks t USING (task_id) WHERE l.look_at <= trace_now() ORDER BY l.look_at LIMIT $2"""

# Where only the clock has spoken, a late word would still be taken: from now on it is not, since its files go.
_FENCE = """
    UPDATE tasks SET lease_token = gen_random_uuid()
    WHERE task_id = ANY($1) AND status = 'Failed' AND outcome = 'Timeout'"""

# Files that lie below a committed prefix and that no manifest names are of Spark tasks that were tried again.
_KEPT = """
    SELECT DISTINCT prefix || '_SUCCESS' AS uri FROM manifests WHERE task_id = ANY($1)
    UNION ALL
    SELECT o ->> 'uri' FROM manifests, json_array_elements(objects) AS o WHERE task_id = ANY($1)"""

# A released batch keeps its artifact until the batch itself is collected. The others are of attempts that never
# completed, and these tasks are over: they go like any file that was not committed.
_PUBLISHED = "SELECT batch_uri FROM buffer_publishes WHERE task_id = ANY($1) AND released_at IS NOT NULL"

_DISCARD = """
    UPDATE buffer_publishes p SET collected_at = trace_now()
    FROM unnest($1::uuid[], $2::int[]) AS u(task_id, attempt)
    WHERE p.task_id = u.task_id AND p.attempt <= u.attempt AND p.released_at IS NULL AND p.collected_at IS NULL"""

_MOVE_ON = "UPDATE collector SET position = greatest(position, $1)"

_LATER = """
    INSERT INTO collect_later (task_id, look_at) SELECT task_id, trace_now() + $2::interval
    FROM unnest($1::uuid[]) AS u(task_id) ON CONFLICT (task_id) DO UPDATE SET look_at = excluded.look_at"""

# Tasks first, as everybody locks: nobody revives one between this look and the move.
_HOLD = """
    SELECT task_id, finished_at < trace_now() - $2::interval AS over
    FROM tasks WHERE task_id = ANY($1) ORDER BY task_id FOR KEY SHARE"""

_DONE = "DELETE FROM collect_later WHERE task_id = ANY($1)"


class Collector:
    def __init__(self, store: Store, objects: ObjectStore, definitions: Definitions, config: DispatcherConfig) -> None:
        self._store = store
        self._objects = objects
        self._definitions = definitions
        self._layout = config.layout
        self._keep = timedelta(days=config.staging_retention_days)

    async def run_once(self) -> int:
        """One page of tasks; answers how many it looked at."""
        async with self._store.connection() as connection:
            due = await connection.fetch(_DUE, self._keep, PAGE)
            new = await connection.fetch(_NEXT, self._keep, PAGE)
            rows = [*due, *new]
            await self._definitions.load_jobs(connection, {row["job_id"] for row in rows})
        writing = [row for row in rows if self._writes_files(row["job_id"])]
        over = [row for row in writing if row["over"]]
        removed = await self._collect(over)
        async with self._store.transaction() as connection:
            locked = await connection.fetch(_HOLD, [row["task_id"] for row in writing], self._keep) if writing else []
            done = {row["task_id"] for row in over} & {row["task_id"] for row in locked if row["over"]}
            early = {row["task_id"] for row in writing} - done
            if due:
                await connection.execute(_DONE, [row["task_id"] for row in due if row["task_id"] not in early])
            if early:
                await connection.execute(_LATER, list(early), self._keep)
            if new:
                await connection.execute(_MOVE_ON, new[-1]["task_id"])
        if removed:
            logger.info("files that were never committed are gone", extra={"files": removed})
        return len(due) + len(new)

    def _writes_files(self, job_id: UUID) -> bool:
        return any(output.storage in _KEPT_IN_FILES for output in self._definitions.job(job_id).outputs)

    async def _collect(self, over: list[asyncpg.Record]) -> int:
        rows = [row for row in over if row["attempt"]]
        tasks = [row["task_id"] for row in rows]
        if not tasks:
            return 0
        async with self._store.transaction() as connection:
            await connection.execute(_FENCE, tasks)
        async with self._store.connection() as connection:
            kept_uris = {row["uri"] for row in await connection.fetch(_KEPT, tasks)}
            published = {row["batch_uri"] for row in await connection.fetch(_PUBLISHED, tasks)}
        removed = 0
        for row in rows:
            job = self._definitions.job(row["job_id"])
            for output in job.outputs:
                if output.storage is Storage.S3:
                    generation = (output.dataset_uuid, output.dataset_version)
                    places = [self._layout.generation(*generation)]
                    if job.is_untrusted:
                        places.append(self._layout.staging(*generation))
                    for place in places:
                        removed += await self._remove(f"{place}{row['task_id']}/", row["attempt"], kept_uris)
            if job.writes_batches:
                prefix = self._layout.buffers(row["task_id"])
                removed += await self._remove(prefix, row["attempt"], published)
            removed += await self._remove(self._layout.scratch(row["task_id"]), row["attempt"], set())
        async with self._store.transaction() as connection:
            await connection.execute(_DISCARD, tasks, [row["attempt"] for row in rows])
        return removed

    async def _remove(self, prefix: str, newest: int, kept_uris: set[str]) -> int:
        """The task's files but those that were committed, and those of attempts that were begun meanwhile."""
        removed = 0
        async for meta in self._objects.walk(prefix):
            attempt, _, _ = meta.uri[len(prefix) :].partition("/")
            if meta.uri in kept_uris or (attempt.isdigit() and int(attempt) > newest):
                continue
            await self._objects.delete(meta.uri)
            removed += 1
        return removed
