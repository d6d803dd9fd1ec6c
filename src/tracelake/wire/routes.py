"""The table of routes: every route of the HTTP contract, declared once.

Routers, clients, OpenAPI documents, the reference and the access tests come from it. CONTRIBUTING.md says how to add a
route.
"""

from types import NoneType
from typing import Any, Literal

from tracelake.wire import (
    batch_query,
    buffers,
    bundles,
    checks,
    claims,
    content,
    operators,
    platform,
    query,
    quotas,
    retention,
    run_logs,
    sources,
    task_calls,
    tokens,
    webhooks,
)
from tracelake.wire import parameters as p
from tracelake.wire.audit import AuditPage
from tracelake.wire.base import Answers
from tracelake.wire.contract import (
    ARROW,
    BYTES,
    PROMETHEUS,
    YAML,
    Access,
    Idempotency,
    Listener,
    Principal,
    Role,
    Route,
)
from tracelake.wire.dags import ActivateRequest, DagsReply, DagVersionsReply, DeployReply
from tracelake.wire.datasets import DatasetDetail, DatasetsReply, EventLookup, EventsPage, EventState, LineageReply
from tracelake.wire.failures import FailuresReply, TaskActionsReply, TaskActionsRequest
from tracelake.wire.jobs import JobsReply, RebuildReply, TriggerReply, TriggerRequest
from tracelake.wire.overview import OverviewReply
from tracelake.wire.pressure import PressureReply
from tracelake.wire.removal import RemovalPlan, RemovalReply, RemovedDagsReply
from tracelake.wire.sources_view import PauseReply, RepairReply, RepairRequest, SourcesReply
from tracelake.wire.tasks import RetryReply, SkipReply, TaskDetail, TaskLookup, TasksPage, TaskStatusFilter
from tracelake.wire.trigger_progress import TriggerProgressReply
from tracelake.wire.why import WhyReply

_INTERNAL = (Listener.INTERNAL,)
_PROBED = (Listener.INTERNAL, Listener.QUERY, Listener.RUNNER)
_OPEN = Access(_PROBED, Principal.NOBODY)
_WORKER = Access(_INTERNAL, Principal.WORKER)
_SERVICE = Access(_INTERNAL, Principal.SERVICE)
_TASK = Access((Listener.TASK,), Principal.TASK)
_PUBLIC = (Listener.PUBLIC,)
_USER = Access(_PUBLIC, Principal.USER)
_READER = Access(_PUBLIC, Principal.USER, Role.READER)
_WRITER = Access(_PUBLIC, Principal.USER, Role.WRITER)
_ADMIN = Access(_PUBLIC, Principal.USER, Role.ADMIN)
_QUERY_READER = Access((Listener.QUERY,), Principal.USER, Role.READER)

_READ, _KEY = Idempotency.READ, Idempotency.KEY
_DAG, _JOB, _TASK_PATH = "/v1/dags/{dag}", "/v1/dags/{dag}/jobs/{job}", "/v1/tasks/{task_id}"

_OF_DAG = p.name("dag", "Of this DAG.", missing="dag_not_found")
_OF_JOB = p.name("job", "Of jobs with this name.", missing="job_not_found")
_OF_VERSION = p.number("version", "Of jobs that this version of `dag` has.", least=1)
_OF_CURRENT = p.flag("current", "Of jobs of active versions, and of versions that are being built.")
_OF_DATASET = p.name("dataset", "Of this dataset.", missing="dataset_not_found")

# Each route is two or three lines: who and how, what it takes and returns, and what else there is to say.
# fmt: off

# Worker wrappers

CLAIM_TASK = Route(
    _WORKER, "POST", "/internal/task-claim", "Claim a task and start its next attempt",
    claims.ClaimRequest, claims.ClaimReply, idempotency=_KEY)
CLAIM_TASKS = Route(
    _WORKER, "POST", "/internal/task-claim-batch", "Claim many tasks, one by one",
    claims.ClaimBatchRequest, Answers, idempotency=_KEY, large=True, items=(claims.ClaimRequest,))
FETCH_TASK = Route(
    _WORKER, "GET", "/internal/task-fetch", "Read a task; never a lease or a token",
    NoneType, claims.FetchReply, query=(p.TASK_ID,))
RENEW_TOKEN = Route(
    _WORKER, "POST", "/internal/task-token", "A new token for the current attempt",
    claims.TokenRequest, claims.TokenReply, errors=("task_not_found", "fenced", "deadline_exceeded"))

STORE_LOGS = Route(
    _WORKER, "POST", "/internal/task-logs", "Store the logs of attempts that a worker has claimed (idempotent)",
    run_logs.StoreLogsRequest, run_logs.StoreLogsReply, large=True)

# Tasks

HEARTBEAT = Route(
    _TASK, "POST", "/v1/task/heartbeat", "Extend the lease",
    task_calls.HeartbeatRequest, task_calls.HeartbeatReply)
COMPLETE = Route(
    _TASK, "POST", "/v1/task/complete", "The final report of an attempt",
    task_calls.CompleteRequest, task_calls.CompleteReply)
ANNOUNCE_EVENTS = Route(
    _TASK, "POST", "/v1/task/events", "Announce updates of the task's own outputs",
    task_calls.EventsRequest, task_calls.EventsReply)
PUBLISH_BATCH = Route(
    _TASK, "POST", "/v1/task/buffer-publish", "Publish a batch artifact",
    task_calls.BufferPublishRequest, task_calls.BufferPublishReply)
LIST_INPUT_FILES = Route(
    _TASK, "POST", "/v1/task/files", "The files of a dataset that the task reads",
    task_calls.FilesRequest, task_calls.FilesReply, idempotency=_READ)
LIST_TASK_DELIVERIES = Route(
    _TASK, "POST", "/v1/task/deliveries", "The deliveries of the webhook source that the task reads",
    task_calls.TaskDeliveriesRequest, task_calls.TaskDeliveriesReply, idempotency=_READ,
    errors=("deliveries_deleted",))
MINT_CREDENTIALS = Route(
    _TASK, "POST", "/v1/task/credentials", "Credentials of the object store for the code of a task",
    task_calls.CredentialsRequest, task_calls.CredentialsReply, idempotency=_READ,
    errors=("credentials_forbidden", "credentials_unavailable", "prefix_forbidden"))
BATCHED_CALLS: dict[task_calls.CallName, Route[Any, Any]] = {
    "heartbeat": HEARTBEAT, "complete": COMPLETE, "events": ANNOUNCE_EVENTS, "buffer-publish": PUBLISH_BATCH}
"""The calls that a batch may hold, by the names of its items."""
BATCH_TASK_CALLS = Route(
    Access((Listener.TASK,), Principal.ITEMS), "POST", "/v1/task/batch", "Many task calls, each with its own token",
    task_calls.BatchRequest, Answers, large=True, errors=("credential_missing",),
    items=(task_calls.BatchCall, *(route.body for route in BATCHED_CALLS.values())))
READ_TASK_KEYS = Route(
    Access((Listener.TASK, Listener.INTERNAL), Principal.NOBODY), "GET", "/internal/jwks/task",
    "The public keys of capability tokens", NoneType, claims.Jwks)

# Runners

INVOKE_FUNCTION = Route(
    Access((Listener.RUNNER,), Principal.SERVICE), "POST", "/internal/invocations",
    "Take over an attempt that runs a user's function",
    claims.InvokeRequest, claims.InvokeReply, large=True,
    errors=("fenced", "runner_busy", "runner_refused", "sandbox_unavailable"))

# Platform services

INTROSPECT_TASK = Route(
    _SERVICE, "POST", "/internal/task-introspect", "Is this attempt current?",
    claims.IntrospectRequest, claims.IntrospectReply, errors=("task_not_found",), idempotency=_READ)
REGISTER_JOB = Route(
    _SERVICE, "POST", "/internal/jobs", "Register a job definition (idempotent)",
    platform.JobRequest, platform.JobReply, errors=("job_invalid",))
CREATE_TASKS = Route(
    _SERVICE, "POST", "/internal/tasks", "Create tasks (idempotent by task_id)",
    platform.TasksRequest, platform.TasksReply, large=True,
    errors=("job_not_found", "task_conflict", "quota_queued_tasks", "quota_stored_bytes"))
CANCEL_TASK_FOR_SERVICE = Route(
    _SERVICE, "POST", "/internal/tasks/{task_id}/cancel", "Cancel, or ask to stop",
    NoneType, platform.CancelReply, errors=("task_finished",))
LIST_DATASET_FILES = Route(
    _SERVICE, "POST", "/internal/dataset-files", "The files of a dataset",
    platform.DatasetFilesRequest, platform.DatasetFilesReply, idempotency=_READ,
    errors=("dataset_not_found", "dataset_not_committed", "dataset_removed", "dataset_without_rows"))
LIST_OUTBOX = Route(
    _SERVICE, "GET", "/internal/outbox", "List outbox rows", NoneType, platform.OutboxReply,
    query=(p.word("status", Literal["pending", "failed"], "Both without it."), p.limit(most=1000, default=100)))
REQUEUE_OUTBOX = Route(
    _SERVICE, "POST", "/internal/outbox/requeue", "Requeue failed outbox rows",
    platform.RequeueRequest, platform.RequeueReply, errors=("outbox_row_not_found",))
LIST_DEAD_LETTERS = Route(
    _SERVICE, "GET", "/internal/dead-letters", "List dead letters",
    NoneType, platform.DeadLettersReply, query=(p.limit(most=1000, default=100),))
DROP_DEAD_LETTERS = Route(
    _SERVICE, "POST", "/internal/dead-letters/drop", "Drop dead letters",
    platform.DropDeadLettersRequest, platform.DropDeadLettersReply, errors=("dead_letter_not_found",))
PLAN_GC = Route(
    _SERVICE, "GET", "/internal/gc", "What is past its retention and would be deleted",
    NoneType, retention.GcPlan)
RUN_GC = Route(
    _SERVICE, "POST", "/internal/gc", "Delete a bounded part of it now",
    NoneType, retention.GcReply, idempotency=Idempotency.NEXT)
LIST_QUOTAS = Route(
    _SERVICE, "GET", "/internal/quotas", "The quotas of orgs and their usage",
    NoneType, quotas.QuotasReply)
CHANGE_QUOTA = Route(
    _SERVICE, "POST", "/internal/quotas", "Set the weight and the quotas of an org",
    quotas.QuotaRequest, quotas.QuotaChange, errors=("org_not_found",))

# The scheduler

LIST_CRON_SOURCES = Route(
    _SERVICE, "GET", "/internal/sources", "The active sources",
    NoneType, sources.CronSourcesReply,
    query=(p.word("kind", Literal["cron"], "Of this kind.", required=True),))
FIRE_SOURCE = Route(
    _SERVICE, "POST", "/internal/sources/{job_id}/fire", "Fire a slot of a cron source (idempotent by the slot)",
    sources.FireRequest, sources.FireReply, idempotency=_KEY)

# Sinks

LIST_BUFFERS = Route(
    _SERVICE, "GET", "/internal/buffers", "The tables of buffered datasets",
    NoneType, buffers.BuffersReply)
LIST_OPEN_BATCHES = Route(
    _SERVICE, "POST", "/internal/buffer-open", "Which batches are not merged yet",
    buffers.BufferOpenRequest, buffers.BufferOpenReply, idempotency=_READ)
COMMIT_BATCHES = Route(
    _SERVICE, "POST", "/internal/buffer-committed", "Report merged batches (idempotent)",
    buffers.BufferCommittedRequest, buffers.BufferCommittedReply,
    errors=("dataset_not_found", "publish_not_found", "commit_conflict"))
REJECT_BATCH = Route(
    _SERVICE, "POST", "/internal/buffer-rejected", "Report a rejected batch (idempotent)",
    buffers.BufferRejectedRequest, buffers.BufferRejectedReply, errors=("publish_not_found",))

REPORT_DROPPED_TABLES = Route(
    _SERVICE, "POST", "/internal/tables-dropped", "Report dropped tables of purged DAGs (idempotent)",
    buffers.TablesDroppedRequest, buffers.TablesDroppedReply)
REPORT_TABLE_SIZES = Route(
    _SERVICE, "POST", "/internal/tables-measured", "Report rows and sizes of tables (idempotent)",
    buffers.TablesMeasuredRequest, buffers.TablesMeasuredReply)

# The Query Service, as a caller of the Dispatcher

READ_USER_KEYS = Route(
    _SERVICE, "GET", "/internal/jwks/user", "The public keys of user tokens that this stack signs",
    NoneType, claims.Jwks)
LIST_REVOCATIONS = Route(
    _SERVICE, "GET", "/internal/token-revocations", "The user tokens that were revoked",
    NoneType, tokens.RevocationsReply)
LIST_RELATIONS = Route(
    _SERVICE, "POST", "/internal/query-relations", "The datasets that people of an org may query",
    query.RelationsRequest, query.RelationsReply, idempotency=_READ)
LIST_ORG_CHECK_RESULTS = Route(
    _SERVICE, "POST", "/internal/check-results", "Results of the checks of an org, newest first",
    checks.OrgCheckResultsRequest, checks.OrgCheckResultsReply, idempotency=_READ)
LIST_TASK_INPUTS = Route(
    _SERVICE, "POST", "/internal/task-inputs", "What the current attempt of a task may query",
    query.TaskInputsRequest, query.TaskInputsReply, idempotency=_READ, errors=("task_not_found", "fenced"))
SUBMIT_BATCH_QUERY = Route(
    _SERVICE, "POST", "/internal/batch-query-submit", "Submit a batch query (idempotent by org and query_id)",
    batch_query.BatchSubmission, batch_query.BatchQueryRecord,
    errors=("dataset_not_committed", "query_id_taken", "query_unknown_relation", "quota_queued_tasks",
            "quota_stored_bytes", "rate_limited"))
SHOW_BATCH_QUERY = Route(
    _SERVICE, "POST", "/internal/batch-query-show", "A batch query, with the files of its result",
    batch_query.BatchQueryRef, batch_query.BatchQueryRecord, errors=("query_forbidden", "query_not_found"))
CANCEL_BATCH_QUERY = Route(
    _SERVICE, "POST", "/internal/batch-query-cancel", "Cancel a batch query",
    batch_query.BatchQueryRef, batch_query.BatchCanceled, errors=("query_forbidden", "query_not_found"))
LIST_BATCH_QUERIES = Route(
    _SERVICE, "POST", "/internal/batch-query-list", "The batch queries of a person",
    batch_query.BatchListRequest, batch_query.BatchQueriesPage, idempotency=_READ)
RECORD_QUERY = Route(
    _SERVICE, "POST", "/internal/query-audit", "Record a query that ended (idempotent)",
    query.QueryAuditRecord, query.QueryAuditReply)

# Senders of webhooks

DELIVER = Route(
    Access(_PUBLIC, Principal.WEBHOOK), "POST", "/v1/webhooks/{path}",
    "Deliver to a webhook (idempotent by its delivery id)", bytes, webhooks.DeliveryReply, body_media=BYTES,
    errors=("delivery_conflict", "rate_limited"), idempotency=_KEY)

# Probes

HEALTHZ = Route(
    _OPEN, "GET", "/healthz", "The process makes progress", NoneType, platform.Health)
READYZ = Route(
    _OPEN, "GET", "/readyz", "The stores answer", NoneType, platform.Health)
METRICS = Route(
    Access(_PROBED, Principal.METRICS), "GET", "/metrics", "Prometheus metrics",
    NoneType, bytes, reply_media=PROMETHEUS)

# Users

WHOAMI = Route(
    _USER, "GET", "/v1/whoami", "The user, org and roles of the token", NoneType, platform.WhoAmI)
SHOW_QUOTA = Route(
    _READER, "GET", "/v1/quota", "The quotas of your org and their usage",
    NoneType, quotas.QuotaReply)

# DAGs

LIST_OPERATORS = Route(
    _READER, "GET", "/v1/operators", "The operators that jobs can name, with their packages",
    NoneType, operators.OperatorsReply)

LIST_DAGS = Route(
    _READER, "GET", "/v1/dags", "The DAGs", NoneType, DagsReply)
DEPLOY = Route(
    _READER, "POST", f"{_DAG}/versions", "Deploy a DAG document (idempotent by its meaning)",
    bytes, DeployReply, body_media=YAML, errors=("dag_invalid",),
    query=(p.flag("dry_run", "Answer the plan and change nothing; everything else needs a writer."),
           p.flag("activate", "Make the version active, after a build if it needs one.")))
LIST_VERSIONS = Route(
    _READER, "GET", f"{_DAG}/versions", "The versions of a DAG, newest first",
    NoneType, DagVersionsReply)
READ_DOCUMENT = Route(
    _READER, "GET", f"{_DAG}/versions/{{number}}", "The document of a version, as deployed",
    NoneType, bytes, reply_media=YAML)
ACTIVATE = Route(
    _WRITER, "PUT", f"{_DAG}/active", "Make a version active, forward or back", ActivateRequest, DeployReply)
PLAN_REMOVAL = Route(
    _READER, "GET", f"{_DAG}/removal", "What a DAG holds, and which other DAGs need it", NoneType, RemovalPlan,
    errors=("dag_removed",))
REMOVE_DAG = Route(
    _WRITER, "POST", f"{_DAG}/remove", "Remove a DAG, for some days (idempotent)", NoneType, RemovalReply,
    errors=("dag_in_use",))
RESTORE_DAG = Route(
    _WRITER, "POST", f"{_DAG}/restore", "Bring a removed DAG back (idempotent)", NoneType, RemovalReply,
    errors=("dag_invalid", "dag_purged", "dataset_removed"))
PURGE_DAG = Route(
    _ADMIN, "POST", f"{_DAG}/purge", "Delete a removed DAG for good (idempotent)", NoneType, RemovalReply,
    errors=("dag_not_removed",))
LIST_REMOVED = Route(
    _READER, "GET", "/v1/removed-dags", "The DAGs that were removed, newest first", NoneType, RemovedDagsReply)
LIST_JOBS = Route(
    _READER, "GET", f"{_DAG}/jobs", "The jobs of a version, with their edges and counts",
    NoneType, JobsReply,
    query=(p.number("version", "Its number; the active one without it.", least=1),))
TRIGGER = Route(
    _WRITER, "POST", f"{_JOB}/trigger", "Trigger a job (idempotent by its key)",
    TriggerRequest, TriggerReply, idempotency=_KEY, key="idempotency_key",
    errors=("input_not_found", "inputs_incomplete", "trigger_conflict", "trigger_invalid"))
SHOW_TRIGGER = Route(
    _READER, "GET", "/v1/triggers", "What follows from a trigger, and whether anything of it is still open",
    NoneType, TriggerProgressReply, errors=("trigger_not_found",),
    query=(p.text("key", "The `idempotency_key` of the trigger's reply."),
           p.flag("across", "Also follow readers in other DAGs that do not lead back into the triggered one.")))
REBUILD = Route(
    _WRITER, "POST", f"{_JOB}/rebuild", "Rebuild the stale outputs of a job (idempotent)", NoneType, RebuildReply)

# Webhooks

SHOW_WEBHOOK = Route(
    _ADMIN, "GET", f"{_JOB}/webhook", "The path and the secret of a webhook (audited)",
    NoneType, webhooks.WebhookReply, errors=("webhook_not_found",))
ROTATE_WEBHOOK = Route(
    _ADMIN, "POST", f"{_JOB}/webhook/rotate", "A new secret; the old one ends later",
    NoneType, webhooks.WebhookReply, errors=("webhook_not_found",), idempotency=_KEY,
    query=(p.number("after", "Only if this is the rotation now: a repeated call rotates once.", least=1),))
LIST_DELIVERIES = Route(
    _READER, "GET", f"{_JOB}/deliveries", "Deliveries, newest first",
    NoneType, webhooks.DeliveriesPage, query=(p.limit(), p.CURSOR_NUMBER))
READ_DELIVERY = Route(
    _WRITER, "GET", f"{_JOB}/deliveries/{{delivery_id}}", "The body of a delivery",
    NoneType, bytes, reply_media=BYTES)

# Dead letters of buffered datasets

LIST_DEAD_BATCHES = Route(
    _READER, "GET", "/v1/dlq", "Rejected batches, oldest first",
    NoneType, buffers.DeadBatchesReply, query=(_OF_DATASET, p.limit(), p.CURSOR_NUMBER))
SHOW_DEAD_BATCH = Route(
    _READER, "GET", "/v1/dlq/{publish_id}", "A rejected batch", NoneType, buffers.DeadBatch)
REPLAY_DEAD_BATCHES = Route(
    _WRITER, "POST", "/v1/dlq-replay", "Replay rejected batches",
    buffers.DeadBatchesRequest, buffers.DeadBatchesChanged, errors=("dataset_not_found", "publish_not_found"))
DROP_DEAD_BATCHES = Route(
    _WRITER, "POST", "/v1/dlq-drop", "Drop rejected batches",
    buffers.DeadBatchesRequest, buffers.DeadBatchesChanged, errors=("dataset_not_found", "publish_not_found"))

# Bundles of users' code

_BUNDLE = "/v1/udf/bundles/{bundle_id}"
LIST_BUNDLES = Route(
    _READER, "GET", "/v1/udf/bundles", "Bundles, newest first",
    NoneType, bundles.BundlesPage, query=(p.limit(), p.CURSOR_UUID))
OPEN_BUNDLE = Route(
    _WRITER, "POST", "/v1/udf/bundles", "Open an upload of a bundle",
    bundles.OpenBundleRequest, bundles.BundleUpload, idempotency=Idempotency.NEXT,
    errors=("bundle_too_large", "quota_bundles", "bundles_unavailable"))
SEND_BUNDLE_PIECE = Route(
    _WRITER, "POST", f"{_BUNDLE}/pieces", "Send a piece of the archive, instead of a PUT to the address of the upload",
    bytes, bundles.BundlePiece, body_media=BYTES, errors=("bundle_not_uploaded",),
    query=(p.block("offset", "The first byte; pieces but the last have 512 KiB.", default=0),))
SHOW_BUNDLE = Route(
    _READER, "GET", _BUNDLE, "A bundle", NoneType, bundles.BundleDetail)
FINALIZE_BUNDLE = Route(
    _WRITER, "POST", f"{_BUNDLE}/finalize", "Inspect an upload and make it an immutable bundle (idempotent)",
    bundles.FinalizeBundleRequest, bundles.BundleDetail,
    errors=("bundle_not_uploaded", "bundle_rejected", "bundle_conflict", "bundle_inspector_unavailable"))
DISABLE_BUNDLE = Route(
    _WRITER, "POST", f"{_BUNDLE}/disable", "Disable a bundle: no attempt starts with it from now on",
    NoneType, bundles.BundleDetail, errors=("bundle_not_ready",))

LIST_RUNS = Route(
    _READER, "GET", "/v1/udf/runs", "The newest runs of a bundle or of a job, those that have a log",
    NoneType, run_logs.FunctionRuns,
    query=(p.uuid("bundle_id", "Of this bundle.", missing="bundle_not_found"), _OF_DAG, _OF_JOB, p.limit(100, 10)))

# Sources

LIST_SOURCES = Route(
    _READER, "GET", "/v1/sources", "The sources of active versions, and their health",
    NoneType, SourcesReply)
PAUSE_SOURCE = Route(
    _WRITER, "POST", f"{_JOB}/pause", "Pause a source; its events are kept",
    NoneType, PauseReply, errors=("job_not_source",))
RESUME_SOURCE = Route(
    _WRITER, "POST", f"{_JOB}/resume", "Resume a paused source",
    NoneType, PauseReply, errors=("job_not_source",))

REPAIR_SOURCE = Route(
    _WRITER, "POST", f"{_JOB}/repair", "Let a source follow a reorganisation of final blocks",
    RepairRequest, RepairReply, errors=("job_not_repairable",))

# Tasks, by users

LIST_TASKS = Route(
    _READER, "GET", "/v1/tasks", "Tasks, newest first", NoneType, TasksPage,
    query=(_OF_DAG, _OF_JOB, _OF_VERSION, _OF_CURRENT,
           p.word("status", TaskStatusFilter, "In this state. `Retrying` waits for its next attempt, `Failed` failed "
                  "and has no retry left, `Skipped` failed and was skipped."),
           p.time("since", "Made at this time or later."), p.time("until", "Made before this time."),
           p.limit(), p.CURSOR_UUID, p.AFTER_UUID))
LIST_FAILURES = Route(
    _READER, "GET", "/v1/task-failures", "Failed tasks without a retry left, grouped by error", NoneType, FailuresReply,
    query=(_OF_DAG, _OF_JOB, _OF_VERSION, _OF_CURRENT))
ACT_ON_TASKS = Route(
    _WRITER, "POST", "/v1/task-actions", "Retry, skip or cancel many tasks, each as the caller saw it",
    TaskActionsRequest, TaskActionsReply)
LOOK_UP_TASKS = Route(
    _READER, "POST", "/v1/task-lookup", "Given tasks as they are now, newest first",
    TaskLookup, TasksPage, idempotency=_READ)
SHOW_TASK = Route(
    _READER, "GET", _TASK_PATH, "A task with its inputs, outputs, attempts and events",
    NoneType, TaskDetail)
READ_LOG = Route(
    _READER, "GET", f"{_TASK_PATH}/log", "The log of an attempt: its lines, or what a function printed, and its end",
    NoneType, run_logs.TaskLog, errors=("log_not_found", "log_expired", "task_has_no_log"),
    query=(p.number("attempt", "Of this attempt; without it, of the newest one that has a log.", least=1),
           p.block("stdout_from", "`stdout.next` of the reply before: only what follows is returned.", default=0),
           p.block("stderr_from", "`stderr.next` of the reply before.", default=0),
           p.block("lines_from", "`lines.next` of the reply before.", default=0)))
LIST_JOB_RUNS = Route(
    _READER, "GET", f"{_JOB}/runs", "The newest attempts of a job's tasks that have a log",
    NoneType, run_logs.JobRuns,
    query=(p.flag("failed", "Only attempts that failed, of the newest 5,000."), p.limit(100, 10)))
CANCEL_TASK = Route(
    _WRITER, "POST", f"{_TASK_PATH}/cancel", "Cancel, or ask to stop",
    NoneType, platform.CancelReply, errors=("task_finished",))
RETRY_TASK = Route(
    _WRITER, "POST", f"{_TASK_PATH}/retry", "Retry a failed task",
    NoneType, RetryReply, errors=("task_finished",))
SKIP_TASK = Route(
    _WRITER, "POST", f"{_TASK_PATH}/skip", "Skip a failed task",
    NoneType, SkipReply, errors=("task_not_failed",))

# Data

LIST_EVENTS = Route(
    _READER, "GET", "/v1/events", "Events, newest first", NoneType, EventsPage,
    query=(_OF_DATASET, p.word("state", EventState, "In this state."),
           p.limit(), p.CURSOR_NUMBER, p.AFTER_NUMBER))
LOOK_UP_EVENTS = Route(
    _READER, "POST", "/v1/event-lookup", "Given events as they are now, oldest first",
    EventLookup, EventsPage, idempotency=_READ)
LIST_DATASETS = Route(
    _READER, "GET", "/v1/datasets", "The datasets", NoneType, DatasetsReply)
SHOW_DATASET = Route(
    _READER, "GET", "/v1/datasets/{name}", "A dataset with its generations and consumers",
    NoneType, DatasetDetail)
LIST_CHECKS = Route(
    _READER, "GET", "/v1/checks", "Checks of active versions, with their newest results",
    NoneType, checks.ChecksReply, query=(_OF_DATASET,))
LIST_CHECK_RESULTS = Route(
    _READER, "GET", "/v1/datasets/{name}/check-results", "Results of the checks of a dataset, newest first",
    NoneType, checks.CheckResultsReply,
    query=(p.label("check", "Of the check with this name."), p.flag("failed", "Only checks that did not pass."),
           p.time("since", "Checked at this time or later."), p.limit(),
           p.time("until", "Checked before this time: that of the last result of the page before.")))
SHOW_LINEAGE = Route(
    _READER, "GET", "/v1/datasets/{name}/lineage", "Which task wrote each unit, from which inputs",
    NoneType, LineageReply,
    query=(p.block("start", "Units that overlap the blocks from here ..."), p.block("end", "... to here."),
           p.UNIT, p.limit(), p.CURSOR_NUMBER))
LIST_CONTENT = Route(
    _READER, "POST", "/v1/datasets/{name}/files", "The files of a dataset",
    content.ContentRequest, content.ContentReply, idempotency=_READ,
    errors=("dataset_not_committed", "dataset_removed", "dataset_without_rows"))
READ_ROWS = Route(
    _READER, "POST", "/v1/datasets/{name}/rows", "Rows of the table of a dataset, streamed",
    content.RowsRequest, bytes, reply_media=ARROW, idempotency=_READ,
    errors=("boundary_moved", "dataset_not_committed", "dataset_removed", "dataset_without_rows"))
READ_CONTENT = Route(
    _READER, "GET", "/v1/datasets/{name}/content", "A piece of a file, 1 MiB at most",
    NoneType, bytes, reply_media=BYTES, errors=("content_mismatch",),
    query=(p.uuid("version", "`dataset_version` of the list.", required=True),
           p.block("start", "The unit's range ..."), p.block("end", "... as the list has it."),
           p.number("revision", "The unit's revision.", least=1, required=True),
           p.number("file", "Which file of the unit, from 0.", default=0),
           p.block("offset", "The first byte.", default=0)))

# Explanations

SHOW_OVERVIEW = Route(
    _READER, "GET", "/v1/overview", "Open work of every job of the active versions",
    NoneType, OverviewReply,
    query=(p.time("since", "Where the window starts, at most an hour ago; ten seconds ago without it."), _OF_DAG))
SHOW_PRESSURE = Route(
    _READER, "GET", "/v1/pressure", "Queues with a threshold, and the edges they stop",
    NoneType, PressureReply)
EXPLAIN_TASK = Route(
    _READER, "GET", "/v1/why/task/{task_id}", "Why a task is not running or not done",
    NoneType, WhyReply)
EXPLAIN_JOB = Route(
    _READER, "GET", "/v1/why/job/{dag}/{job}", "Why a job creates or finishes no tasks",
    NoneType, WhyReply)
EXPLAIN_DATASET = Route(
    _READER, "GET", "/v1/why/dataset/{name}", "Why a dataset is not up to date",
    NoneType, WhyReply)

# Admins

LIST_AUDIT_LOG = Route(
    _ADMIN, "GET", "/v1/audit", "Changes by users, newest first",
    NoneType, AuditPage, query=(p.limit(), p.CURSOR_NUMBER))
LIST_QUERIES = Route(
    _ADMIN, "GET", "/v1/query-audit", "Queries of people and tasks, newest first",
    NoneType, query.QueryAuditPage, query=(p.limit(), p.CURSOR_UUID))

CREATE_TOKEN = Route(
    _ADMIN, "POST", "/v1/tokens", "Make a token of a user of your org (idempotent by token_id)",
    tokens.UserTokenRequest, tokens.TokenCreated, idempotency=_KEY, key="token_id",
    errors=("token_conflict", "tokens_external", "too_many_tokens"))
LIST_TOKENS = Route(
    _ADMIN, "GET", "/v1/tokens", "Tokens that admins made, newest first",
    NoneType, tokens.TokensPage, query=(p.limit(), p.CURSOR_UUID))
REVOKE_TOKEN = Route(
    _ADMIN, "DELETE", "/v1/tokens/{token_id}", "Revoke a token", NoneType, tokens.Revoked)
REVOKE_UNRECORDED = Route(
    _ADMIN, "POST", "/v1/token-revocations", "Revoke tokens without a record, by `jti` or by subject",
    tokens.RevokeRequest, tokens.Revoked, errors=("too_many_tokens",))

# Queries: listeners of the Query Service

_QUERY_ERRORS = (
    "artifact_missing", "boundary_moved", "content_mismatch", "dataset_not_committed", "query_canceled", "query_failed",
    "query_id_taken", "query_out_of_memory", "query_timeout", "query_too_large")
QUERY = Route(
    _QUERY_READER, "POST", "/v1/query", "Query datasets with SQL, at once or (202) as a batch query",
    query.QueryRequest, query.QueryReply, idempotency=_READ, errors=_QUERY_ERRORS)
SHOW_CATALOG = Route(
    _QUERY_READER, "GET", "/v1/query/catalog", "The datasets that can be queried, with their columns",
    NoneType, query.CatalogReply)
LIST_OWN_QUERIES = Route(
    _QUERY_READER, "GET", "/v1/query", "The caller's batch queries, newest first",
    NoneType, batch_query.BatchQueriesPage, query=(p.limit(), p.CURSOR_UUID))
SHOW_QUERY = Route(
    _QUERY_READER, "GET", "/v1/query/{query_id}", "A batch query: its state, and its result once it is done",
    NoneType, batch_query.BatchQueryReply, errors=("query_forbidden",))
CANCEL_QUERY = Route(
    _QUERY_READER, "DELETE", "/v1/query/{query_id}", "Cancel a query of the caller",
    NoneType, query.CancelQueryReply, errors=("query_forbidden",))
READ_RESULT = Route(
    _QUERY_READER, "GET", "/v1/query/{query_id}/content", "A piece of a file of a batch query's result, 1 MiB at most",
    NoneType, bytes, reply_media=BYTES, errors=("content_mismatch", "query_forbidden"),
    query=(p.number("file", "Which of `downloads`, from 0.", default=0),
           p.block("offset", "The first byte.", default=0)))
READ_EXPORT = Route(
    _QUERY_READER, "GET", "/v1/query-exports/{export_id}", "A piece of an exported result of the caller, 1 MiB at most",
    NoneType, bytes, reply_media=BYTES, errors=("content_mismatch",),
    query=(p.block("offset", "The first byte.", default=0),))
QUERY_AS_TASK = Route(
    Access((Listener.QUERY_TASK,), Principal.TASK), "POST", "/v1/task/query", "Query the inputs of a task with SQL",
    query.TaskQueryRequest, query.QueryReply, idempotency=_READ, errors=_QUERY_ERRORS)

# fmt: on

ROUTES: tuple[Route[Any, Any], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Route))
"""All of them, in the order of this module."""


def routes_of(listener: Listener) -> list[Route[Any, Any]]:
    return [route for route in ROUTES if listener in route.listeners]
