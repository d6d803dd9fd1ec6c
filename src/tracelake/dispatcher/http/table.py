"""The one table of routes: which listener carries what, for whom."""

from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.dispatcher.http.handlers import Handlers
from tracelake.dispatcher.http.routing import Listener, Principal, QueryParameter, Route
from tracelake.wire import claims, platform, task_calls
from tracelake.wire.base import Answers

_INTERNAL = (Listener.INTERNAL,)
_TASK = (Listener.TASK,)
_PUBLIC = (Listener.PUBLIC,)


def build_routes(handlers: Handlers) -> list[Route]:
    h = handlers
    worker, service, task = Principal.WORKER, Principal.SERVICE, Principal.TASK
    task_id = QueryParameter("task_id", UUID, required=True, description="The task's UUID.")
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
        Route(_INTERNAL, "GET", "/internal/outbox", service, h.list_outbox, "List outbox rows",
              reply=platform.OutboxReply,
              query=(QueryParameter("status", Literal["pending", "failed"], description="Both without it."),
                     QueryParameter("limit", Annotated[int, Meta(ge=1, le=1000)], description="By default 100."))),
        Route(_INTERNAL, "POST", "/internal/outbox/requeue", service, h.requeue_outbox, "Try failed outbox rows again",
              body=platform.RequeueRequest, reply=platform.RequeueReply),
        # Probes
        Route(_INTERNAL, "GET", "/healthz", Principal.NOBODY, h.healthz, "The process answers", reply=platform.Health),
        Route(_INTERNAL, "GET", "/readyz", Principal.NOBODY, h.readyz, "The stores answer", reply=platform.Health),
        Route(_INTERNAL, "GET", "/metrics", Principal.NOBODY, h.metrics, "Prometheus metrics"),
        # People
        Route(_PUBLIC, "GET", "/v1/whoami", Principal.USER, h.whoami, "Who you are", reply=platform.WhoAmI),
    ]  # fmt: skip


def routes_of(routes: list[Route], listener: Listener) -> list[Route]:
    return [route for route in routes if listener in route.listeners]
