"""A Dispatcher that traces, with a clock that can be moved, and the collector it sends to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tests.tracing.support import Collector, Traced, chain, collector
from tracelake.dispatcher.config import DispatcherConfig


@pytest.fixture
def seen() -> Iterator[Collector]:
    with collector() as running:
        yield running


@pytest.fixture
def config(seen: Collector) -> DispatcherConfig:
    return dispatcher_config(otlp_endpoint=seen.url, user_rate_per_second=10**6, user_rate_burst=10**6)


@pytest.fixture
def harness(config: DispatcherConfig, state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[DispatcherHarness]:
    running = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path, config)
    running.use_movable_clock()
    yield running
    running.stop()


@pytest.fixture
def flow(harness: DispatcherHarness) -> Traced:
    """src -> first -> second, deployed."""
    flow = Traced(harness)
    flow.deploy(str(chain()))
    return flow
