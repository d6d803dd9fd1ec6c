"""The endpoints of tasks, workers, platform services, senders of webhooks, and probes. No decision is made here."""

from dataclasses import dataclass

import msgspec

from tracelake import __version__
from tracelake.dispatcher import job_definitions
from tracelake.dispatcher.access.user_tokens import UserTokens
from tracelake.dispatcher.batch_queries.states import BatchQueries
from tracelake.dispatcher.buffers.commits import BufferCommits
from tracelake.dispatcher.deploy.reading import FairReader
from tracelake.dispatcher.http.batches import Batches
from tracelake.dispatcher.http.credentials import Gatekeeper
from tracelake.dispatcher.http.health import HealthChecks
from tracelake.dispatcher.outbox import admin as outbox
from tracelake.dispatcher.quotas.admin import QuotaAdmin
from tracelake.dispatcher.retention.loop import Retention
from tracelake.dispatcher.run_logs.attempt_logs import store_logs
from tracelake.dispatcher.service import DispatcherService
from tracelake.dispatcher.sources.cron import CronSources
from tracelake.dispatcher.sources.webhook_deliveries import Deliveries
from tracelake.errors import TraceError
from tracelake.http.router import Endpoint, HttpRequest, RawReply, answer
from tracelake.ports import Queue
from tracelake.tokens.verify import KeyDirectory
from tracelake.wire import platform, routes
from tracelake.wire.contract import JSON

_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class MachineEndpoints:
    service: DispatcherService
    gatekeeper: Gatekeeper
    keys: KeyDirectory
    user_keys: KeyDirectory
    health: HealthChecks
    deliveries: Deliveries
    cron: CronSources
    buffers: BufferCommits
    queue: Queue
    documents: FairReader
    retention: Retention
    quotas: QuotaAdmin
    queries: BatchQueries
    tokens: UserTokens

    def endpoints(self) -> list[Endpoint]:
        service, batches = self.service, Batches(self.service, self.gatekeeper)
        return [
            answer(routes.CLAIM_TASK, lambda r: service.claim(r.body)),
            answer(routes.CLAIM_TASKS, batches.claim),
            answer(routes.FETCH_TASK, lambda r: service.fetch(r["task_id"])),
            answer(routes.RENEW_TOKEN, lambda r: service.token(r.body)),
            answer(routes.STORE_LOGS, lambda r: store_logs(service.store, service.objects, service.config, r.body)),
            answer(routes.HEARTBEAT, lambda r: service.heartbeat(r.task_claims, r.body)),
            answer(routes.COMPLETE, lambda r: service.complete(r.task_claims, r.body)),
            answer(routes.ANNOUNCE_EVENTS, lambda r: service.events(r.task_claims, r.body)),
            answer(routes.PUBLISH_BATCH, lambda r: service.buffer_publish(r.task_claims, r.body)),
            answer(routes.LIST_INPUT_FILES, lambda r: service.files(r.task_claims, r.body)),
            answer(routes.LIST_TASK_DELIVERIES, lambda r: service.deliveries(r.task_claims, r.body)),
            answer(routes.MINT_CREDENTIALS, lambda r: service.credentials(r.task_claims, r.body)),
            answer(routes.BATCH_TASK_CALLS, batches.perform),
            answer(routes.READ_TASK_KEYS, self._read_keys),
            answer(routes.INTROSPECT_TASK, lambda r: service.introspect(r.body)),
            answer(routes.REGISTER_JOB, self._register_job),
            answer(routes.CREATE_TASKS, self._create_tasks),
            answer(routes.CANCEL_TASK_FOR_SERVICE, lambda r: service.cancel(r["task_id"])),
            answer(routes.LIST_DATASET_FILES, lambda r: service.dataset_files(r.body)),
            answer(routes.LIST_OUTBOX, self._list_outbox),
            answer(routes.REQUEUE_OUTBOX, self._requeue_outbox),
            answer(routes.LIST_DEAD_LETTERS, lambda r: outbox.dead_letters(self.queue, r["limit"])),
            answer(routes.DROP_DEAD_LETTERS, self._drop_dead_letters),
            answer(routes.PLAN_GC, lambda _: self.retention.plan()),
            answer(routes.RUN_GC, lambda _: self.retention.run_round()),
            answer(routes.LIST_QUOTAS, lambda _: self.quotas.list()),
            answer(routes.CHANGE_QUOTA, lambda r: self.quotas.change(r.body)),
            answer(routes.LIST_CRON_SOURCES, lambda _: self.cron.list()),
            answer(routes.FIRE_SOURCE, lambda r: self.cron.fire(r["job_id"], r.body)),
            answer(routes.LIST_BUFFERS, lambda _: self.buffers.list()),
            answer(routes.LIST_OPEN_BATCHES, lambda r: self.buffers.open(r.body)),
            answer(routes.COMMIT_BATCHES, lambda r: self.buffers.committed(r.body)),
            answer(routes.REJECT_BATCH, lambda r: self.buffers.rejected(r.body)),
            answer(routes.REPORT_DROPPED_TABLES, lambda r: self.buffers.tables_dropped(r.body)),
            answer(routes.REPORT_TABLE_SIZES, lambda r: self.buffers.tables_measured(r.body)),
            answer(routes.READ_USER_KEYS, self._read_user_keys),
            answer(routes.LIST_REVOCATIONS, lambda _: self.tokens.list_revocations()),
            answer(routes.LIST_RELATIONS, lambda r: service.relations(r.body)),
            answer(routes.LIST_ORG_CHECK_RESULTS, lambda r: service.check_results(r.body)),
            answer(routes.LIST_TASK_INPUTS, lambda r: service.task_inputs(r.body)),
            answer(routes.SUBMIT_BATCH_QUERY, lambda r: self.queries.submit(r.body)),
            answer(routes.SHOW_BATCH_QUERY, lambda r: self.queries.show(r.body)),
            answer(routes.CANCEL_BATCH_QUERY, lambda r: self.queries.cancel(r.body)),
            answer(routes.LIST_BATCH_QUERIES, lambda r: self.queries.list(r.body)),
            answer(routes.RECORD_QUERY, lambda r: service.record_query(r.body)),
            answer(routes.DELIVER, lambda r: self.deliveries.deliver(r["path"], r.signed_head, r.body)),
            answer(routes.HEALTHZ, self._healthz),
            answer(routes.READYZ, self._readyz),
            answer(routes.METRICS, self._metrics),
        ]

    async def _register_job(self, request: HttpRequest[platform.JobRequest]) -> platform.JobReply:
        job = request.body
        if job_definitions.takes_config(job):
            await self.documents.check_config(job.org, job.operator, job.config)
        return await job_definitions.register_job(self.service.store, job, self.service.config)

    async def _create_tasks(self, request: HttpRequest[platform.TasksRequest]) -> platform.TasksReply:
        return platform.TasksReply(tasks=await self.service.create_tasks(request.body.tasks))

    async def _list_outbox(self, request: HttpRequest[None]) -> platform.OutboxReply:
        status = request["status"]
        return await outbox.list_rows(self.service.store, status and status.title(), request["limit"])

    async def _requeue_outbox(self, request: HttpRequest[platform.RequeueRequest]) -> platform.RequeueReply:
        requeued = await outbox.requeue(self.service.store, request.body.outbox_ids)
        if request.body.outbox_ids and not requeued:
            raise TraceError("outbox_row_not_found")
        return platform.RequeueReply(requeued=requeued)

    async def _drop_dead_letters(
        self, request: HttpRequest[platform.DropDeadLettersRequest]
    ) -> platform.DropDeadLettersReply:
        dropped = await outbox.drop_dead_letters(self.queue, request.body.message_ids)
        if request.body.message_ids and not dropped:
            raise TraceError("dead_letter_not_found")
        return platform.DropDeadLettersReply(dropped=dropped)

    async def _read_keys(self, _request: HttpRequest[None]) -> RawReply:
        return self._serve_keys(self.keys)

    async def _read_user_keys(self, _request: HttpRequest[None]) -> RawReply:
        return self._serve_keys(self.user_keys)

    def _serve_keys(self, keys: KeyDirectory) -> RawReply:
        document = keys.jwks(self.service.clock.now())
        return RawReply(_ENCODER.encode(document), JSON, max_age=self.service.config.jwks_cache_seconds)

    async def _healthz(self, _request: HttpRequest[None]) -> RawReply:
        return _health({} if self.health.is_alive() else {"lifecycle": "stalled"})

    async def _readyz(self, _request: HttpRequest[None]) -> RawReply:
        return _health(await self.health.check())

    async def _metrics(self, _request: HttpRequest[None]) -> bytes:
        return self.service.metrics.render()


def _health(checks: dict[str, str]) -> RawReply:
    healthy = all(state == "ok" for state in checks.values())
    body = platform.Health(status="ok" if healthy else "unavailable", checks=checks, version=__version__)
    return RawReply(_ENCODER.encode(body), JSON, 200 if healthy else 503)
