"""Config objects of the parts as default settings make them, with what a test changes."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracelake.dispatcher.config import DispatcherConfig
from tracelake.http.connections import ListenerLimits
from tracelake.scheduler import SchedulerConfig
from tracelake.settings import Settings, configs

if TYPE_CHECKING:
    from tracelake.query.assembly import QueryServiceConfig
    from tracelake.sink.config import SinkConfig
    from tracelake.worker import WorkerConfig

_DEFAULTS = Settings(runner_slots=1024)
"""Tests share Dispatchers, and leave functions running that would keep their places."""
USER_TOKEN_RULES = configs.user_token_rules(_DEFAULTS)


def dispatcher_config(**changes: Any) -> DispatcherConfig:
    return replace(configs.dispatcher_config(_DEFAULTS), **changes)


def listener_limits(**changes: Any) -> ListenerLimits:
    return configs.take_config(
        ListenerLimits, _DEFAULTS, "http_", **{"connections": _DEFAULTS.public_connections, **changes}
    )


def scheduler_config(**changes: Any) -> SchedulerConfig:
    return configs.take_config(SchedulerConfig, _DEFAULTS, "scheduler_", **changes)


def sink_config(**changes: Any) -> "SinkConfig":
    from tracelake.processes import sink  # with Arrow, which most tests do without

    return replace(sink.sink_config(_DEFAULTS), **changes)


def worker_config(**changes: Any) -> "WorkerConfig":
    """Without reserved slots, unless a test asks for some."""
    from tracelake.processes import worker

    return replace(worker.worker_config(_DEFAULTS, "worker"), **{"reserved_slots": 0, **changes})


def query_config(**changes: Any) -> "QueryServiceConfig":
    from tracelake.processes import query_service

    return replace(query_service.query_config(_DEFAULTS), **changes)
