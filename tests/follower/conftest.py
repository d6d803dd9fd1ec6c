"""Two nodes that serve the same recorded chain."""

from collections.abc import Iterator

import pytest

from tests.follower.source import use
from tests.support.chain import ServedChain, serve_chain

BLOCKS = 60


@pytest.fixture(scope="module")
def served_nodes() -> Iterator[tuple[ServedChain, ServedChain]]:
    with serve_chain(BLOCKS) as one, serve_chain(BLOCKS) as other:
        yield one, other


@pytest.fixture
def nodes(
    served_nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ServedChain, ServedChain]]:
    use(monkeypatch, *served_nodes)
    yield served_nodes
    for node in served_nodes:
        node.clear()
        node.restore()
        node.show(BLOCKS)
        node._watchers.clear()
