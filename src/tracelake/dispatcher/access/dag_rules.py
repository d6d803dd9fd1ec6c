"""What a token that is limited to DAGs may call: one rule for each route of people on the public listener.

`DagScope.guard` wraps every endpoint of users and applies the rule of its route, for limited tokens alone. A route
without a rule is refused to them, and a test fails until it has one. Rules come in three steps:

- **before the call**: the DAG, task, dataset or batch that the call names must belong to a DAG of the token. A DAG of
  another name is `dag_forbidden`, whether it exists or not; other things of other DAGs are not there (404);
- **in the call**: lists with pages are filtered by the statement that reads them (`FILTERED`);
- **after the call**: rows of other DAGs are left out of a reply.

For routes that only read, the DAGs of a token are also those that it may read (`read_dags`); for all others, those that
it may change.

A dataset belongs to the DAG that owns its name. What belongs to no DAG (bundles, quotas) is the org's: it can be seen,
and not be taken away from others. ADR 0059 has the reasons.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from uuid import UUID

from msgspec.structs import replace as replace_fields

from tracelake.db.transaction import Connection
from tracelake.errors import TraceError
from tracelake.http.router import Endpoint, HttpRequest
from tracelake.wire import routes
from tracelake.wire.contract import Idempotency, Route

_TASK_DAG = "SELECT j.dag_name FROM tasks t JOIN jobs j USING (job_id) WHERE t.org_id = $1 AND t.task_id = $2"
_TASKS = """
    SELECT count(*) FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.org_id = $1 AND t.task_id = ANY($2) AND j.dag_name = ANY($3)"""
_TRIGGER_DAG = """
    SELECT n.dag_name FROM triggers t JOIN nodes n ON n.node_id = (t.reply->>'node_id')::uuid
    WHERE t.org_id = $1 AND t.idempotency_key = $2"""
_DATASET_DAG = "SELECT dag_name FROM datasets WHERE org_id = $1 AND name = $2"
_DATASETS = "SELECT name FROM datasets WHERE org_id = $1 AND dag_name = ANY($2)"
_BATCHES = """
    SELECT count(*) FROM buffer_publishes p JOIN datasets d USING (dataset_uuid)
    WHERE p.publish_id = ANY($2) AND d.org_id = $1 AND d.dag_name = ANY($3)"""

Request: TypeAlias = HttpRequest[Any]


@dataclass(frozen=True, slots=True)
class ScopedCall:
    """A call with a limited token, and where to look things up."""

    request: Request
    org_id: UUID | None
    dags: tuple[str, ...]
    """Those that the token may read, or change, whichever the route does."""
    connect: Callable[[str], AbstractAsyncContextManager[Connection]]

    async def fetch_value(self, statement: str, *arguments: Any) -> Any:
        async with self.connect(self.request.user_claims.org) as connection:
            return await connection.fetchval(statement, self.org_id, *arguments)

    async def dataset_names(self) -> set[str]:
        async with self.connect(self.request.user_claims.org) as connection:
            return {row["name"] for row in await connection.fetch(_DATASETS, self.org_id, list(self.dags))}


Check: TypeAlias = Callable[[ScopedCall], Awaitable[None]]
Filter: TypeAlias = Callable[[ScopedCall, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class RouteRule:
    """The checks before a call, in their order, and the filter of its reply."""

    checks: tuple[Check, ...] = ()
    filter: Filter | None = None


# Checks


async def _check_dag(call: ScopedCall) -> None:
    """Of the path, or of the filter of a list, which may be left out."""
    dag = call.request.parameters.get("dag")
    if dag is not None and dag not in call.dags:
        raise TraceError("dag_forbidden", f"The token is limited to {', '.join(call.dags) or 'no DAG'}.")


async def _check_task(call: ScopedCall) -> None:
    if await call.fetch_value(_TASK_DAG, call.request["task_id"]) not in call.dags:
        raise TraceError("task_not_found")


async def _check_tasks(call: ScopedCall) -> None:
    task_ids = {item.task_id for item in call.request.body.tasks}
    if await call.fetch_value(_TASKS, list(task_ids), list(call.dags)) != len(task_ids):
        raise TraceError("task_not_found")


async def _check_trigger(call: ScopedCall) -> None:
    if await call.fetch_value(_TRIGGER_DAG, call.request["key"]) not in call.dags:
        raise TraceError("trigger_not_found")


async def _check_dataset(call: ScopedCall) -> None:
    name = call.request.parameters.get("name") or call.request.parameters.get("dataset")
    if name is not None:
        await _require_dataset(call, name)


async def _check_batches(call: ScopedCall) -> None:
    body = call.request.body
    if body.dataset is not None:
        await _require_dataset(call, body.dataset)
    publish_ids = {*(body.publish_ids or ())}
    if publish_ids and await call.fetch_value(_BATCHES, list(publish_ids), list(call.dags)) != len(publish_ids):
        raise TraceError("publish_not_found")


async def _check_batch(call: ScopedCall) -> None:
    if not await call.fetch_value(_BATCHES, [call.request["publish_id"]], list(call.dags)):
        raise TraceError("publish_not_found")


async def _refuse(_call: ScopedCall) -> None:
    raise TraceError("dag_forbidden", "This concerns all of the organisation, and the token is limited to DAGs.")


async def _require_dataset(call: ScopedCall, name: str) -> None:
    if await call.fetch_value(_DATASET_DAG, name) not in call.dags:
        raise TraceError("dataset_not_found")


# Filters


def _keep_dags(*fields: str, name: str = "dag") -> Filter:
    """Keeps the rows of the lists in these fields that name a DAG of the token."""

    async def keep(call: ScopedCall, reply: Any) -> Any:
        lists = {field: [row for row in getattr(reply, field) if getattr(row, name) in call.dags] for field in fields}
        return replace_fields(reply, **lists)

    return keep


def _keep_datasets(field: str, name: str = "dataset") -> Filter:
    """Keeps the rows of the list in this field that name a dataset of the token's DAGs."""

    async def keep(call: ScopedCall, reply: Any) -> Any:
        names = await call.dataset_names()
        return replace_fields(reply, **{field: [row for row in getattr(reply, field) if getattr(row, name) in names]})

    return keep


async def _keep_progress(call: ScopedCall, reply: Any) -> Any:
    """The counts are of all that follows; what has a name is of the token's DAGs."""

    def belongs(job: str) -> bool:
        return job.partition("/")[0] in call.dags

    errors = [group for group in reply.errors if all(map(belongs, group.jobs))]
    return replace_fields(reply, inputs=[item for item in reply.inputs if belongs(item.job)], errors=errors)


async def _count_readers(call: ScopedCall, reply: Any) -> Any:
    """Readers of other DAGs have no names here, and prevent a removal all the same."""
    page = await _keep_dags("readers")(call, reply)
    return replace_fields(page, more_readers=len(reply.readers) - len(page.readers))


async def _keep_readers(call: ScopedCall, reply: Any) -> Any:
    """The plan of a deploy names jobs of the token's DAGs only; the number of tasks is of all."""
    plan = replace_fields(
        reply.plan,
        subscribers=[job for job in reply.plan.subscribers if job.partition("/")[0] in call.dags],
        readers=[row for row in reply.plan.readers if row.dag in call.dags],
    )
    return replace_fields(reply, plan=plan)


async def _keep_letters(call: ScopedCall, reply: Any) -> Any:
    """Without the number of all of the org."""
    page = await _keep_datasets("letters")(call, reply)
    return replace_fields(page, total=len(page.letters)) if call.request["dataset"] is None else page


# The table

_OPEN = RouteRule()
"""Says nothing about DAGs, or is about the caller or the org's own things."""
FILTERED = RouteRule((_check_dag, _check_dataset))
"""The statement that reads gets the DAGs of the token."""
_REFUSED = RouteRule((_refuse,))
_DAG = RouteRule((_check_dag,))
_TASK = RouteRule((_check_task,))
_DATASET = RouteRule((_check_dataset,))

RULES: Mapping[Route[Any, Any], RouteRule] = {
    routes.WHOAMI: _OPEN,
    routes.SHOW_QUOTA: _OPEN,
    routes.LIST_OPERATORS: _OPEN,
    routes.LIST_DAGS: RouteRule(filter=_keep_dags("dags", name="name")),
    routes.DEPLOY: RouteRule((_check_dag,), _keep_readers),  # what the document may name: `deploy/deployments.py`
    routes.LIST_VERSIONS: _DAG,
    routes.READ_DOCUMENT: _DAG,
    routes.ACTIVATE: RouteRule((_check_dag,), _keep_readers),
    routes.LIST_JOBS: _DAG,
    routes.PLAN_REMOVAL: RouteRule((_check_dag,), _count_readers),
    routes.REMOVE_DAG: _DAG,
    routes.RESTORE_DAG: _DAG,
    routes.PURGE_DAG: _DAG,
    routes.LIST_REMOVED: RouteRule(filter=_keep_dags("dags")),
    routes.TRIGGER: _DAG,
    routes.SHOW_TRIGGER: RouteRule((_check_trigger,), _keep_progress),
    routes.REBUILD: _DAG,
    routes.SHOW_WEBHOOK: _REFUSED,
    routes.ROTATE_WEBHOOK: _REFUSED,
    routes.LIST_DELIVERIES: _DAG,
    routes.READ_DELIVERY: _DAG,
    routes.LIST_DEAD_BATCHES: RouteRule((_check_dataset,), _keep_letters),
    routes.SHOW_DEAD_BATCH: RouteRule((_check_batch,)),
    routes.REPLAY_DEAD_BATCHES: RouteRule((_check_batches,)),
    routes.DROP_DEAD_BATCHES: RouteRule((_check_batches,)),
    routes.LIST_BUNDLES: _OPEN,
    routes.OPEN_BUNDLE: _OPEN,
    routes.SEND_BUNDLE_PIECE: _OPEN,
    routes.SHOW_BUNDLE: _OPEN,
    routes.FINALIZE_BUNDLE: _OPEN,
    routes.DISABLE_BUNDLE: _REFUSED,
    routes.LIST_RUNS: RouteRule((_check_dag,), _keep_dags("runs")),
    routes.LIST_SOURCES: RouteRule(filter=_keep_dags("sources")),
    routes.PAUSE_SOURCE: _DAG,
    routes.RESUME_SOURCE: _DAG,
    routes.REPAIR_SOURCE: _DAG,
    routes.LIST_TASKS: FILTERED,
    routes.LIST_FAILURES: FILTERED,
    routes.ACT_ON_TASKS: RouteRule((_check_tasks,)),
    routes.LIST_JOB_RUNS: _DAG,
    routes.LOOK_UP_TASKS: RouteRule(filter=_keep_dags("tasks")),
    routes.SHOW_TASK: _TASK,
    routes.READ_LOG: _TASK,
    routes.CANCEL_TASK: _TASK,
    routes.RETRY_TASK: _TASK,
    routes.SKIP_TASK: _TASK,
    routes.LIST_EVENTS: FILTERED,
    routes.LOOK_UP_EVENTS: RouteRule(filter=_keep_datasets("events")),
    routes.LIST_DATASETS: RouteRule(filter=_keep_dags("datasets")),
    routes.SHOW_DATASET: RouteRule((_check_dataset,), _keep_dags("consumers")),
    routes.LIST_CHECKS: RouteRule((_check_dataset,), _keep_datasets("checks")),
    routes.LIST_CHECK_RESULTS: _DATASET,
    routes.SHOW_LINEAGE: _DATASET,
    routes.LIST_CONTENT: _DATASET,
    routes.READ_ROWS: _DATASET,
    routes.READ_CONTENT: _DATASET,
    routes.SHOW_OVERVIEW: RouteRule((_check_dag,), _keep_dags("jobs", "queues", "stopped", "sources")),
    routes.SHOW_PRESSURE: RouteRule(filter=_keep_dags("queues", "edges")),
    routes.EXPLAIN_TASK: _TASK,
    routes.EXPLAIN_JOB: _DAG,
    routes.EXPLAIN_DATASET: _DATASET,
    routes.LIST_AUDIT_LOG: _REFUSED,
    routes.LIST_QUERIES: _REFUSED,
    routes.CREATE_TOKEN: _REFUSED,
    routes.LIST_TOKENS: _REFUSED,
    routes.REVOKE_TOKEN: _REFUSED,
    routes.REVOKE_UNRECORDED: _REFUSED,
}


@dataclass(frozen=True, slots=True)
class DagScope:
    """Applies the rules. Calls with other tokens go straight to their handlers."""

    find_org: Callable[[str], Awaitable[UUID | None]]
    connect: Callable[[str], AbstractAsyncContextManager[Connection]]

    def guard(self, endpoint: Endpoint) -> Endpoint:
        rule, handler = RULES.get(endpoint.route, _REFUSED), endpoint.handler
        only_reads = endpoint.route.idempotency is Idempotency.READ

        async def handle(request: Request) -> Any:
            user = request.user_claims
            if user.dags is None:
                return await handler(request)
            dags = (only_reads and user.readable_dags) or user.dags
            call = ScopedCall(request, await self.find_org(user.org), dags, self.connect)
            for check in rule.checks:
                await check(call)
            reply = await handler(request)
            return reply if rule.filter is None else await rule.filter(call, reply)

        return replace(endpoint, handler=handle)
