from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.feeds.support import FeedServer, FeedTrial
from tracelake.feeds.hosts import FeedHosts


@pytest.fixture
def server() -> Iterator[FeedServer]:
    with FeedServer().running() as running:
        yield running


@pytest.fixture
def hosts(server: FeedServer) -> FeedHosts:
    """The server is a private host that was named."""
    return FeedHosts(private=frozenset({("127.0.0.1", server.port)}))


@pytest.fixture
def trial(tmp_path: Path, hosts: FeedHosts) -> FeedTrial:
    return FeedTrial(tmp_path, hosts)
