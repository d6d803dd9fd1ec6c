"""The one table of routes: which listener carries what, for whom."""

from typing import Literal, get_args

from tracelake.dispatcher.http import parameters as p
from tracelake.dispatcher.http.handlers import Handlers
from tracelake.dispatcher.http.routing import Listener, Principal, Route
from tracelake.dispatcher.http.user_handlers import YAML, UserHandlers
from tracelake.dispatcher.users import Role
from tracelake.wire import buffers, claims, content, platform, quotas, retention, sources, task_calls, webhooks
from tracelake.wire.audit import AuditPage
from tracelake.wire.base import Answers
from tracelake.wire.dags import ActivateRequest, DagsReply, DagVersionsReply, DeployReply
from tracelake.wire.datasets import DatasetDetail, DatasetsReply, EventLookup, EventsPage, LineageReply
from tracelake.wire.jobs import JobsReply, RebuildReply, TriggerReply, TriggerRequest
from tracelake.wire.overview import OverviewReply
from tracelake.wire.pressure import PressureReply
from tracelake.wire.sources_view import PauseReply, SourcesReply
from tracelake.wire.tasks import RetryReply, SkipReply, TaskDetail, TaskLookup, TasksPage, TaskStatusFilter
from tracelake.wire.why import WhyReply

_INTERNAL = (Listener.INTERNAL,)
_TASK = (Listener.TASK,)
_PUBLIC = (Listener.PUBLIC,)
ANYTHING = "application/octet-stream"
"""Bodies that are kept as they come."""


_OutboxStatus = Literal["pending", "failed"]
_WorkedKind = Literal["cron"]
_EventState = Literal["Routed", "AwaitsCommit", "NotCurrent", "Outdated"]


def build_routes(handlers: Handlers, users: UserHandlers) -> list[Route]:
    return _machine_routes(handlers) + _user_routes(users)


def _machine_routes(handlers: Handlers) -> list[Route]:
    h = handlers
    worker, service, task = Principal.WORKER, Principal.SERVICE, Principal.TASK
    task_id = p.uuid("task_id", "The task's UUID.", required=True)
    return [
        # Worker wrappers
        Route(_INTERNAL, "POST", "/internal/task-claim", worker, h.claim, "Claim a task and start its next attempt",
              body=claims.ClaimRequest, reply=claims.ClaimReply),
        Route(_INTERNAL, "POST", "/internal/task-claim-batch", worker, h.claim_batch, "Claim many tasks, one by one",
              body=claims.ClaimBatchRequest, reply=Answers, batch=True, per_item=True),
        Route(_INTERNAL, "GET", "/internal/task-fetch", worker, h.fetch, "Read a task; never a lease or a token",
              reply=claims.FetchReply, query=(task_id,)),
        Route(_INTERNAL, "POST", "/internal/task-token", worker, h.token, "A fresh token for a current attempt",
              body=claims.TokenRequest, reply=claims.TokenReply),
        # Tasks
        Route(_TASK, "POST", "/v1/task/heartbeat", task, h.heartbeat, "Extend the lease",
              body=task_calls.HeartbeatRequest, reply=task_calls.HeartbeatReply),
        Route(_TASK, "POST", "/v1/task/complete", task, h.complete, "The attempt's final word",
              body=task_calls.CompleteRequest, reply=task_calls.CompleteReply),
        Route(_TASK, "POST", "/v1/task/events", task, h.events, "Announce updates of the task's own outputs",
              body=task_calls.EventsRequest, reply=task_calls.EventsReply),
        Route(_TASK, "POST", "/v1/task/buffer-publish", task, h.buffer_publish, "Publish a batch artifact",
              body=task_calls.BufferPublishRequest, reply=task_calls.BufferPublishReply),
        Route(_TASK, "POST", "/v1/task/files", task, h.files, "The files of a dataset that the task reads",
              body=task_calls.FilesRequest, reply=task_calls.FilesReply),
        Route(_TASK, "POST", "/v1/task/batch", Principal.ITEMS, h.batch, "Many task calls, each with its own token",
              body=task_calls.BatchRequest, reply=Answers, batch=True, per_item=True),
        Route((Listener.TASK, Listener.INTERNAL), "GET", "/internal/jwks/task", Principal.NOBODY, h.jwks,
              "The public keys of capability tokens", reply=claims.Jwks),
        # Platform services
        Route(_INTERNAL, "POST", "/internal/task-introspect", service, h.introspect, "Is this attempt current?",
              body=claims.IntrospectRequest, reply=claims.IntrospectReply),
        Route(_INTERNAL, "POST", "/internal/jobs", service, h.register_job, "Register a job definition (idempotent)",
              body=platform.JobRequest, reply=platform.JobReply),
        Route(_INTERNAL, "POST", "/internal/tasks", service, h.create_tasks, "Create tasks (idempotent by task_id)",
              body=platform.TasksRequest, reply=platform.TasksReply, batch=True),
        Route(_INTERNAL, "POST", "/internal/tasks/{task_id}/cancel", service, h.cancel, "Cancel, or ask to stop",
              reply=platform.CancelReply),
        Route(_INTERNAL, "POST", "/internal/dataset-files", service, h.dataset_files, "The files of a dataset",
              body=platform.DatasetFilesRequest, reply=platform.DatasetFilesReply),
        Route(_INTERNAL, "GET", "/internal/outbox", service, h.list_outbox, "List outbox rows",
              reply=platform.OutboxReply,
              query=(p.word("status", _OutboxStatus, get_args(_OutboxStatus), "Both without it."),
                     p.limit(most=1000, default=100))),
        Route(_INTERNAL, "POST", "/internal/outbox/requeue", service, h.requeue_outbox, "Try failed outbox rows again",
              body=platform.RequeueRequest, reply=platform.RequeueReply),
        Route(_INTERNAL, "GET", "/internal/dead-letters", service, h.list_dead_letters, "List dead letters",
              reply=platform.DeadLettersReply, query=(p.limit(most=1000, default=100),)),
        Route(_INTERNAL, "POST", "/internal/dead-letters/drop", service, h.drop_dead_letters, "Drop dead letters",
              body=platform.DropDeadLettersRequest, reply=platform.DropDeadLettersReply),
        Route(_INTERNAL, "GET", "/internal/gc", service, h.plan_gc, "What was kept long enough and would be removed",
              reply=retention.GcPlan),
        Route(_INTERNAL, "POST", "/internal/gc", service, h.run_gc, "Remove a bounded part of it now",
              reply=retention.GcReply),
        Route(_INTERNAL, "GET", "/internal/quotas", service, h.list_quotas, "What orgs may use, and what they use",
              reply=quotas.QuotasReply),
        Route(_INTERNAL, "POST", "/internal/quotas", service, h.change_quota, "Set the weight and the quotas of an org",
              body=quotas.QuotaRequest, reply=quotas.QuotaChange),
        # The scheduler
        Route(_INTERNAL, "GET", "/internal/sources", service, h.list_sources, "The sources that are at work",
              reply=sources.CronSourcesReply,
              query=(p.word("kind", _WorkedKind, get_args(_WorkedKind), "Of this kind.", required=True),)),
        Route(_INTERNAL, "POST", "/internal/sources/{job_id}/fire", service, h.fire_source,
              "A slot of a cron source is due (idempotent by the slot)",
              body=sources.FireRequest, reply=sources.FireReply),
        # Sinks
        Route(_INTERNAL, "GET", "/internal/buffers", service, h.list_buffers, "The tables of buffered datasets",
              reply=buffers.BuffersReply),
        Route(_INTERNAL, "POST", "/internal/buffer-open", service, h.buffer_open, "Which batches still wait",
              body=buffers.BufferOpenRequest, reply=buffers.BufferOpenReply),
        Route(_INTERNAL, "POST", "/internal/buffer-committed", service, h.buffer_committed,
              "Batches are in their table (idempotent)",
              body=buffers.BufferCommittedRequest, reply=buffers.BufferCommittedReply),
        Route(_INTERNAL, "POST", "/internal/buffer-rejected", service, h.buffer_rejected,
              "A batch cannot be taken (idempotent)",
              body=buffers.BufferRejectedRequest, reply=buffers.BufferRejectedReply),
        # Senders of webhooks
        Route(_PUBLIC, "POST", "/v1/webhooks/{path}", Principal.WEBHOOK, h.deliver,
              "Deliver to a webhook (idempotent by its delivery id)", raw_body=ANYTHING, reply=webhooks.DeliveryReply),
        # Probes
        Route(_INTERNAL, "GET", "/healthz", Principal.NOBODY, h.healthz, "The process works off its calls",
              reply=platform.Health),
        Route(_INTERNAL, "GET", "/readyz", Principal.NOBODY, h.readyz, "The stores answer", reply=platform.Health),
        Route(_INTERNAL, "GET", "/metrics", Principal.METRICS, h.metrics, "Prometheus metrics"),
    ]  # fmt: skip


def _user_routes(u: UserHandlers) -> list[Route]:
    who, reader, writer, admin = Principal.USER, Role.READER, Role.WRITER, Role.ADMIN
    dag, job, task = "/v1/dags/{dag}", "/v1/dags/{dag}/jobs/{job}", "/v1/tasks/{task_id}"
    return [
        Route(_PUBLIC, "GET", "/v1/whoami", who, u.whoami, "Who you are", reply=platform.WhoAmI),
        Route(_PUBLIC, "GET", "/v1/quota", who, u.quota, "What your org may use, and what it uses",
              reply=quotas.QuotaReply, role=reader),
        # DAGs
        Route(_PUBLIC, "GET", "/v1/dags", who, u.list_dags, "The DAGs", reply=DagsReply, role=reader),
        Route(_PUBLIC, "POST", f"{dag}/versions", who, u.deploy, "Deploy a DAG document (idempotent by its meaning)",
              raw_body=YAML, reply=DeployReply, role=reader,
              query=(p.flag("dry_run", "Answer the plan and change nothing; everything else needs a writer."),
                     p.flag("activate", "Make the version active, after a build if it needs one."))),
        Route(_PUBLIC, "GET", f"{dag}/versions", who, u.dag_versions, "The versions of a DAG, newest first",
              reply=DagVersionsReply, role=reader),
        Route(_PUBLIC, "GET", f"{dag}/versions/{{number}}", who, u.dag_source, "The document of a version, as deployed",
              raw_reply=YAML, role=reader),
        Route(_PUBLIC, "PUT", f"{dag}/active", who, u.activate, "Make a version active, forward or back",
              body=ActivateRequest, reply=DeployReply, role=writer),
        Route(_PUBLIC, "GET", f"{dag}/jobs", who, u.dag_jobs, "The jobs of a version, with their edges and counts",
              reply=JobsReply, role=reader,
              query=(p.number("version", "Its number; the active one without it.", least=1),)),
        Route(_PUBLIC, "POST", f"{dag}/jobs/{{job}}/trigger", who, u.trigger, "Trigger a job (idempotent by its key)",
              body=TriggerRequest, reply=TriggerReply, role=writer),
        Route(_PUBLIC, "POST", f"{job}/rebuild", who, u.rebuild, "Make the stale outputs of a job again (idempotent)",
              reply=RebuildReply, role=writer),
        # Webhooks
        Route(_PUBLIC, "GET", f"{job}/webhook", who, u.webhook, "The path and the secret of a webhook (audited)",
              reply=webhooks.WebhookReply, role=admin),
        Route(_PUBLIC, "POST", f"{job}/webhook/rotate", who, u.rotate_webhook, "A new secret; the old one ends later",
              reply=webhooks.WebhookReply, role=admin,
              query=(p.number("after", "Only if this is the rotation now: a repeated call rotates once.", least=1),)),
        Route(_PUBLIC, "GET", f"{job}/deliveries", who, u.list_deliveries, "What was delivered, newest first",
              reply=webhooks.DeliveriesPage, role=reader, query=(p.limit(), p.cursor_number())),
        Route(_PUBLIC, "GET", f"{job}/deliveries/{{delivery_id}}", who, u.delivery_body, "The body of one, as it came",
              raw_reply=ANYTHING, role=writer),
        # Dead letters of buffered datasets
        Route(_PUBLIC, "GET", "/v1/dlq", who, u.list_dead_batches, "Batches that could not be taken, oldest first",
              reply=buffers.DeadBatchesReply, role=reader,
              query=(p.name("dataset", "Of this dataset."), p.limit(), p.cursor_number())),
        Route(_PUBLIC, "GET", "/v1/dlq/{publish_id}", who, u.show_dead_batch, "One of them",
              reply=buffers.DeadBatch, role=reader),
        Route(_PUBLIC, "POST", "/v1/dlq-replay", who, u.replay_dead_batches, "Give them to the sinks again",
              body=buffers.DeadBatchesRequest, reply=buffers.DeadBatchesChanged, role=writer),
        Route(_PUBLIC, "POST", "/v1/dlq-drop", who, u.drop_dead_batches, "Forget them for good",
              body=buffers.DeadBatchesRequest, reply=buffers.DeadBatchesChanged, role=writer),
        # Sources
        Route(_PUBLIC, "GET", "/v1/sources", who, u.list_sources, "The sources of active versions, and their health",
              reply=SourcesReply, role=reader),
        Route(_PUBLIC, "POST", f"{dag}/jobs/{{job}}/pause", who, u.pause, "Keep what a source says unrouted",
              reply=PauseReply, role=writer),
        Route(_PUBLIC, "POST", f"{dag}/jobs/{{job}}/resume", who, u.resume, "Let a paused source go on",
              reply=PauseReply, role=writer),
        # Tasks
        Route(_PUBLIC, "GET", "/v1/tasks", who, u.list_tasks, "Tasks, newest first", reply=TasksPage, role=reader,
              query=(p.name("dag", "Of this DAG."), p.name("job", "Of jobs with this name."),
                     p.word("status", TaskStatusFilter, get_args(TaskStatusFilter),
                            "In this state. `Retrying` waits for its next attempt, `Failed` failed for good, "
                            "`Skipped` failed for good and was skipped."),
                     p.time("since", "Made at this time or later."), p.time("until", "Made before this time."),
                     p.limit(), p.cursor_uuid(), p.after_uuid())),
        Route(_PUBLIC, "POST", "/v1/task-lookup", who, u.look_up_tasks, "Given tasks as they are now, newest first",
              body=TaskLookup, reply=TasksPage, role=reader),
        Route(_PUBLIC, "GET", task, who, u.task, "A task with its inputs, outputs, attempts and events",
              reply=TaskDetail, role=reader),
        Route(_PUBLIC, "POST", f"{task}/cancel", who, u.cancel, "Cancel, or ask to stop", reply=platform.CancelReply,
              role=writer),
        Route(_PUBLIC, "POST", f"{task}/retry", who, u.retry, "Try a failed task again", reply=RetryReply,
              role=writer),
        Route(_PUBLIC, "POST", f"{task}/skip", who, u.skip, "Go on without a failed task", reply=SkipReply,
              role=writer),
        # Data
        Route(_PUBLIC, "GET", "/v1/events", who, u.list_events, "Events, newest first", reply=EventsPage,
              role=reader,
              query=(p.name("dataset", "Of this dataset."),
                     p.word("state", _EventState, get_args(_EventState), "In this state."),
                     p.limit(), p.cursor_number(), p.after_number())),
        Route(_PUBLIC, "POST", "/v1/event-lookup", who, u.look_up_events, "Given events as they are now, oldest first",
              body=EventLookup, reply=EventsPage, role=reader),
        Route(_PUBLIC, "GET", "/v1/datasets", who, u.list_datasets, "The datasets", reply=DatasetsReply,
              role=reader),
        Route(_PUBLIC, "GET", "/v1/datasets/{name}", who, u.dataset, "A dataset with its generations and consumers",
              reply=DatasetDetail, role=reader),
        Route(_PUBLIC, "GET", "/v1/datasets/{name}/lineage", who, u.lineage, "Which task made what, from what",
              reply=LineageReply, role=reader,
              query=(p.block("start", "Units that overlap the blocks from here ..."), p.block("end", "... to here."),
                     p.UNIT, p.limit(), p.cursor_number())),
        Route(_PUBLIC, "POST", "/v1/datasets/{name}/files", who, u.list_content, "The files of a dataset",
              body=content.ContentRequest, reply=content.ContentReply, role=reader),
        Route(_PUBLIC, "GET", "/v1/datasets/{name}/content", who, u.read_content, "A piece of a file, 1 MiB at most",
              raw_reply=ANYTHING, role=reader,
              query=(p.uuid("version", "`dataset_version` of the list.", required=True),
                     p.block("start", "The unit's range ..."), p.block("end", "... as the list has it."),
                     p.number("revision", "The unit's revision.", least=1, required=True),
                     p.number("file", "Which file of the unit, from 0.", default=0),
                     p.block("offset", "The first byte.", default=0))),
        # Explanations
        Route(_PUBLIC, "GET", "/v1/overview", who, u.overview, "What every job of an active version has to do",
              reply=OverviewReply, role=reader,
              query=(p.time("since", "Where the window starts, at most an hour ago; ten seconds ago without it."),
                     p.name("dag", "Of this DAG."))),
        Route(_PUBLIC, "GET", "/v1/pressure", who, u.pressure, "Queues with a threshold, and the edges they stop",
              reply=PressureReply, role=reader),
        Route(_PUBLIC, "GET", "/v1/why/task/{task_id}", who, u.why_task, "Why a task is not running or not done",
              reply=WhyReply, role=reader),
        Route(_PUBLIC, "GET", "/v1/why/job/{dag}/{job}", who, u.why_job, "Why a job makes or finishes no tasks",
              reply=WhyReply, role=reader),
        Route(_PUBLIC, "GET", "/v1/why/dataset/{name}", who, u.why_dataset, "Why a dataset is not fresh",
              reply=WhyReply, role=reader),
        # Admins
        Route(_PUBLIC, "GET", "/v1/audit", who, u.audit, "What users changed, newest first", reply=AuditPage,
              role=admin, query=(p.limit(), p.cursor_number())),
    ]  # fmt: skip


def routes_of(routes: list[Route], listener: Listener) -> list[Route]:
    return [route for route in routes if listener in route.listeners]
