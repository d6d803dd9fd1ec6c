"""A Dispatcher that tells a receiver of lineage, with a clock that can be moved."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.openlineage.receiver import TestReceiver, receiving
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.config import DispatcherConfig


@pytest.fixture
def receiver() -> Iterator[TestReceiver]:
    with receiving() as running:
        yield running


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "receiver.key"
    path.write_text("the-key-of-the-receiver\n")
    return path


@pytest.fixture
def config(receiver: TestReceiver, key_file: Path) -> DispatcherConfig:
    return dispatcher_config(
        openlineage_url=receiver.url,
        openlineage_key_file=key_file,
        openlineage_backlog=20,
        user_rate_per_second=10**6,
        user_rate_burst=10**6,
    )


@pytest.fixture
def harness(config: DispatcherConfig, state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[DispatcherHarness]:
    running = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path, config)
    running.use_movable_clock()
    yield running
    running.stop()
