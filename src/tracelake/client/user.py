"""Typed client of the user API, `/v1/*` on the public listener.

Every call may be repeated: reads change nothing, a deploy is the same version by its content, a trigger carries a key
(one is made here if the caller gives none), and cancel, retry and skip answer `duplicate`. So a 429 is waited for as
long as the server asks, within bounds, and a refused token is read again once, because tokens rotate.

A name that no DAG, job or dataset can have is answered here, with the error that the server gives for one that does not
exist: it would not survive as a part of a path.

A stack that was stopped and started again may have other addresses: after a call that nobody answered, the next one
looks first where the stack is now.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode
from uuid import UUID, uuid4

import msgspec

from tracelake.client.calls import encoder
from tracelake.client.credentials import Credential, FileCredential
from tracelake.client.errors import DispatcherUnavailableError, StackDownError, decode, error_from
from tracelake.client.http import HttpClient, HttpReply
from tracelake.client.stack import NoStackError, Stack
from tracelake.errors import TraceError
from tracelake.wire.audit import AuditPage
from tracelake.wire.buffers import DeadBatch, DeadBatchesChanged, DeadBatchesReply, DeadBatchesRequest
from tracelake.wire.content import ContentReply, ContentRequest, ContentUnit
from tracelake.wire.dags import ActivateRequest, DagsReply, DagVersionsReply, DeployReply
from tracelake.wire.datasets import DatasetDetail, DatasetsReply, EventKey, EventLookup, EventsPage, LineageReply
from tracelake.wire.jobs import JobsReply, RebuildReply, TriggerReply, TriggerRequest
from tracelake.wire.overview import OverviewReply
from tracelake.wire.platform import CancelReply, WhoAmI
from tracelake.wire.pressure import PressureReply
from tracelake.wire.quotas import QuotaReply
from tracelake.wire.sources_view import PauseReply, SourcesReply
from tracelake.wire.tasks import RetryReply, SkipReply, TaskDetail, TaskLookup, TasksPage
from tracelake.wire.webhooks import WebhookReply
from tracelake.wire.why import WhyReply

T = TypeVar("T")

TOKEN_VARIABLE = "TRACE_TOKEN"  # noqa: S105 - the variable's name
YAML = "application/yaml"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,127}")
_MAX_TRIES = 5
_CONNECT_SECONDS = 10
_READ_SECONDS = 10
"""Reads are bounded in what they look at; what changes something may take as long as `HttpClient` waits."""
_MAX_WAIT_SECONDS = 30
"""Whoever is told to wait longer than this is told so, instead of hanging."""

_dead_batches = msgspec.json.Decoder(DeadBatchesReply)
_dead_batch = msgspec.json.Decoder(DeadBatch)
_dead_changed = msgspec.json.Decoder(DeadBatchesChanged)
_audit = msgspec.json.Decoder(AuditPage)
_content = msgspec.json.Decoder(ContentReply)
_cancel = msgspec.json.Decoder(CancelReply)
_dags = msgspec.json.Decoder(DagsReply)
_dataset = msgspec.json.Decoder(DatasetDetail)
_datasets = msgspec.json.Decoder(DatasetsReply)
_deploy = msgspec.json.Decoder(DeployReply)
_events = msgspec.json.Decoder(EventsPage)
_jobs = msgspec.json.Decoder(JobsReply)
_lineage = msgspec.json.Decoder(LineageReply)
_overview = msgspec.json.Decoder(OverviewReply)
_pause = msgspec.json.Decoder(PauseReply)
_quota = msgspec.json.Decoder(QuotaReply)
_pressure = msgspec.json.Decoder(PressureReply)
_retry = msgspec.json.Decoder(RetryReply)
_skip = msgspec.json.Decoder(SkipReply)
_sources = msgspec.json.Decoder(SourcesReply)
_task = msgspec.json.Decoder(TaskDetail)
_tasks = msgspec.json.Decoder(TasksPage)
_trigger = msgspec.json.Decoder(TriggerReply)
_rebuild = msgspec.json.Decoder(RebuildReply)
_versions = msgspec.json.Decoder(DagVersionsReply)
_webhook = msgspec.json.Decoder(WebhookReply)
_whoami = msgspec.json.Decoder(WhoAmI)
_why = msgspec.json.Decoder(WhyReply)


class TextCredential:
    """A token given as it is; there is no place to look for a newer one."""

    def __init__(self, token: str) -> None:
        self._token = token

    def current(self) -> str:
        return self._token

    def newer_than(self, refused: str) -> str | None:  # noqa: ARG002 - the protocol's
        return None


def user_credential(stack: Stack, token_file: Path | None, environ: Mapping[str, str] = os.environ) -> Credential:
    """The given file, else TRACE_TOKEN, else the admin token of the stack."""
    if token_file is not None:
        return FileCredential(token_file)
    token = environ.get(TOKEN_VARIABLE, "").strip()
    return TextCredential(token) if token else FileCredential(Path(stack.admin_token_file))


class UserClient:
    def __init__(
        self, http: HttpClient, credential: Credential, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._http = http
        self._credential = credential
        self._sleep = sleep
        self._lost = False
        """Nobody answered the last call."""
        self._place: _Place | None = None

    @classmethod
    def of_stack(
        cls, stack: Stack, token_file: Path | None = None, *, again: Callable[[], Stack] | None = None
    ) -> "UserClient":
        """`again` finds the stack anew, or raises NoStackError; without it the first address is kept."""
        client = cls(_http(stack), user_credential(stack, token_file))
        if again is not None:
            client._place = _Place(stack, token_file, again)
        return client

    async def close(self) -> None:
        await self._http.close()

    async def whoami(self) -> WhoAmI:
        return await self._get("/v1/whoami", _whoami)

    # --- DAGs

    async def deploy(self, dag: str, yaml: bytes, *, dry_run: bool = False, activate: bool = True) -> DeployReply:
        """A document that is not valid is a `dag_invalid` whose details are an `InvalidDag`."""
        query = _query(dry_run=str(dry_run).lower(), activate=str(activate).lower())
        path = f"/v1/dags/{_segment(dag, 'dag_not_found')}/versions{query}"
        return decode(_deploy, (await self._request("POST", path, yaml, YAML)).body)

    async def dags(self) -> DagsReply:
        return await self._get("/v1/dags", _dags)

    async def versions(self, dag: str) -> DagVersionsReply:
        return await self._get(f"/v1/dags/{_segment(dag, 'dag_not_found')}/versions", _versions)

    async def source(self, dag: str, number: int) -> bytes:
        """The YAML text of a version, as it was deployed."""
        path = f"/v1/dags/{_segment(dag, 'dag_not_found')}/versions/{number:d}"
        return (await self._request("GET", path)).body

    async def activate(self, dag: str, version: int | Literal["previous"], *, now: bool = False) -> DeployReply:
        path = f"/v1/dags/{_segment(dag, 'dag_not_found')}/active"
        return await self._send("PUT", path, _deploy, ActivateRequest(version=version, now=now))

    async def jobs(self, dag: str, version: int | None = None) -> JobsReply:
        """Of the active version, or of the given one."""
        return await self._get(f"/v1/dags/{_segment(dag, 'dag_not_found')}/jobs{_query(version=version)}", _jobs)

    async def trigger(self, dag: str, job: str, request: TriggerRequest) -> TriggerReply:
        if request.idempotency_key is None:
            # So that an answer that got lost on the way costs a repeat and not a second trigger.
            request = msgspec.structs.replace(request, idempotency_key=str(uuid4()))
        path = f"/v1/dags/{_segment(dag, 'dag_not_found')}/jobs/{_segment(job, 'job_not_found')}/trigger"
        return await self._send("POST", path, _trigger, request)

    async def rebuild(self, dag: str, job: str) -> RebuildReply:
        return await self._send("POST", f"{_job_path(dag, job)}/rebuild", _rebuild)

    # --- sources

    async def sources(self) -> SourcesReply:
        return await self._get("/v1/sources", _sources)

    async def pause(self, dag: str, job: str) -> PauseReply:
        return await self._send("POST", f"{_job_path(dag, job)}/pause", _pause)

    async def resume(self, dag: str, job: str) -> PauseReply:
        return await self._send("POST", f"{_job_path(dag, job)}/resume", _pause)

    async def webhook(self, dag: str, job: str) -> WebhookReply:
        return await self._get(_webhook_path(dag, job), _webhook)

    async def rotate_webhook(self, dag: str, job: str, *, after: int) -> WebhookReply:
        """`after` is the rotation that was seen: then a repeated call does not rotate once more."""
        return await self._send("POST", f"{_webhook_path(dag, job)}/rotate{_query(after=after)}", _webhook)

    # --- tasks

    async def tasks(
        self,
        *,
        dag: str | None = None,
        job: str | None = None,
        status: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        after: str | None = None,
    ) -> TasksPage:
        """One page; `next` of the answer is the `cursor` (or, with it, the `after`) of the following one."""
        query = _query(
            dag=dag,
            job=job,
            status=status,
            since=_time(since),
            until=_time(until),
            limit=limit,
            cursor=cursor,
            after=after,
        )
        return await self._get(f"/v1/tasks{query}", _tasks)

    async def look_up_tasks(self, task_ids: list[UUID]) -> TasksPage:
        """These as they are now; at most a thousand."""
        return await self._send("POST", "/v1/task-lookup", _tasks, TaskLookup(task_ids=task_ids))

    async def task(self, task_id: UUID) -> TaskDetail:
        return await self._get(f"/v1/tasks/{task_id}", _task)

    async def cancel(self, task_id: UUID) -> CancelReply:
        return await self._send("POST", f"/v1/tasks/{task_id}/cancel", _cancel)

    async def retry(self, task_id: UUID) -> RetryReply:
        return await self._send("POST", f"/v1/tasks/{task_id}/retry", _retry)

    async def skip(self, task_id: UUID) -> SkipReply:
        return await self._send("POST", f"/v1/tasks/{task_id}/skip", _skip)

    # --- data

    async def events(
        self,
        *,
        dataset: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        after: str | None = None,
    ) -> EventsPage:
        query = _query(dataset=dataset, state=state, limit=limit, cursor=cursor, after=after)
        return await self._get(f"/v1/events{query}", _events)

    async def look_up_events(self, events: list[EventKey]) -> EventsPage:
        """These as they are now; at most a thousand."""
        return await self._send("POST", "/v1/event-lookup", _events, EventLookup(events=events))

    async def datasets(self) -> DatasetsReply:
        return await self._get("/v1/datasets", _datasets)

    async def dataset(self, name: str) -> DatasetDetail:
        return await self._get(f"/v1/datasets/{_segment(name, 'dataset_not_found')}", _dataset)

    async def lineage(
        self,
        name: str,
        *,
        unit: str | None = None,
        start: int | None = None,
        end: int | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> LineageReply:
        query = _query(unit=unit, start=start, end=end, limit=limit, cursor=cursor)
        return await self._get(f"/v1/datasets/{_segment(name, 'dataset_not_found')}/lineage{query}", _lineage)

    async def content(self, name: str, request: ContentRequest) -> ContentReply:
        """The files of a dataset, a page of them."""
        path = f"/v1/datasets/{_segment(name, 'dataset_not_found')}/files"
        return await self._send("POST", path, _content, request)

    async def content_piece(self, name: str, version: UUID, unit: ContentUnit, file: int, offset: int) -> bytes:
        """Bytes of a file from there on, as many as one answer has."""
        place = {"version": str(version), "start": unit.start, "end": unit.end, "revision": unit.revision}
        query = _query(**place, file=file, offset=offset)
        path = f"/v1/datasets/{_segment(name, 'dataset_not_found')}/content{query}"
        return (await self._request("GET", path)).body

    # --- explanations

    async def overview(self, *, since: datetime | None = None, dag: str | None = None) -> OverviewReply:
        return await self._get(f"/v1/overview{_query(since=_time(since), dag=dag)}", _overview)

    async def quota(self) -> QuotaReply:
        return await self._get("/v1/quota", _quota)

    async def pressure(self) -> PressureReply:
        return await self._get("/v1/pressure", _pressure)

    async def why_task(self, task_id: UUID) -> WhyReply:
        return await self._get(f"/v1/why/task/{task_id}", _why)

    async def why_job(self, dag: str, job: str) -> WhyReply:
        path = f"/v1/why/job/{_segment(dag, 'dag_not_found')}/{_segment(job, 'job_not_found')}"
        return await self._get(path, _why)

    async def why_dataset(self, name: str) -> WhyReply:
        return await self._get(f"/v1/why/dataset/{_segment(name, 'dataset_not_found')}", _why)

    # --- admins

    async def audit(self, *, limit: int | None = None, cursor: str | None = None) -> AuditPage:
        return await self._get(f"/v1/audit{_query(limit=limit, cursor=cursor)}", _audit)

    async def dead_batches(
        self, *, dataset: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> DeadBatchesReply:
        return await self._get(f"/v1/dlq{_query(dataset=dataset, limit=limit, cursor=cursor)}", _dead_batches)

    async def dead_batch(self, publish_id: UUID) -> DeadBatch:
        return await self._get(f"/v1/dlq/{publish_id}", _dead_batch)

    async def replay_dead_batches(self, request: DeadBatchesRequest) -> DeadBatchesChanged:
        return await self._send("POST", "/v1/dlq-replay", _dead_changed, request)

    async def drop_dead_batches(self, request: DeadBatchesRequest) -> DeadBatchesChanged:
        return await self._send("POST", "/v1/dlq-drop", _dead_changed, request)

    # --- the way there and back

    async def _get(self, path: str, decoder: "msgspec.json.Decoder[T]") -> T:
        return decode(decoder, (await self._request("GET", path)).body)

    async def _send(self, method: str, path: str, decoder: "msgspec.json.Decoder[T]", body: Any = None) -> T:
        data = None if body is None else encoder.encode(body)
        return decode(decoder, (await self._request(method, path, data)).body)

    async def _request(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> HttpReply:
        """An answer of the 200s; everything else is raised."""
        if self._lost and self._place is not None:
            await self._find_again(self._place)
        try:
            reply = await self._ask(method, path, body, content_type)
        except DispatcherUnavailableError:
            self._lost = True
            raise
        self._lost = False
        if 200 <= reply.status < 300:
            return reply
        raise error_from(reply.status, reply.body)

    async def _find_again(self, place: "_Place") -> None:
        try:
            stack = place.again()
            if stack == place.stack:
                return
            http = _http(stack)
        except (NoStackError, OSError):
            raise StackDownError("the stack is down") from None
        await self._http.close()
        self._http, self._credential = http, user_credential(stack, place.token_file)
        place.stack = stack

    async def _ask(self, method: str, path: str, body: bytes | None, content_type: str) -> HttpReply:
        token, looked_again = self._credential.current(), False
        for tries in range(1, _MAX_TRIES + 1):
            reply = await self._http.request(
                method,
                path,
                body=body,
                headers=[("Authorization", f"Bearer {token}")],
                timeout=_READ_SECONDS if method == "GET" else None,
                content_type=content_type,
            )
            if reply.status == 401 and not looked_again:
                newer, looked_again = self._credential.newer_than(token), True
                if newer is not None:
                    token = newer
                    continue
            wait = 1 if reply.retry_after is None else reply.retry_after
            if reply.status != 429 or wait > _MAX_WAIT_SECONDS or tries == _MAX_TRIES:
                break
            await self._sleep(wait)
        return reply


@dataclass(slots=True)
class _Place:
    """Where the stack was found, and how to look again."""

    stack: Stack
    token_file: Path | None
    again: Callable[[], Stack]


def _http(stack: Stack) -> HttpClient:
    return HttpClient(stack.public_url, stack.ca_file, connect_timeout=_CONNECT_SECONDS)


def _job_path(dag: str, job: str) -> str:
    return f"/v1/dags/{_segment(dag, 'dag_not_found')}/jobs/{_segment(job, 'job_not_found')}"


def _webhook_path(dag: str, job: str) -> str:
    return f"/v1/dags/{_segment(dag, 'dag_not_found')}/jobs/{_segment(job, 'job_not_found')}/webhook"


def _segment(name: str, code: str) -> str:
    if not _NAME.fullmatch(name):
        raise TraceError(code)
    return name


def _query(**values: str | int | None) -> str:
    parameters = {name: value for name, value in values.items() if value is not None}
    return f"?{urlencode(parameters)}" if parameters else ""


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")
