"""Each way in which a node can fail a whole task: the attempt says which blocks and node, and the next one is right."""

from collections.abc import Callable, Iterator

import pytest

from tests.chain.faults import Call, Delay, Drop, NotJson, PartialBatch, RpcErrors, Status, Truncate
from tests.spark.evm.support import CHAIN_ID, expected
from tests.spark.support import Bench
from tests.support.chain import ServedChain, recorded, serve_chain
from tracelake.spark.evm.errors import IngestError
from tracelake.spark.operators.evm_ingest import run

TABLES = ("blocks", "transactions", "logs")
BLOCKS = 60
CONFIG = {"chain_id": CHAIN_ID, "chunk_blocks": 30}


def in_the_middle(calls: list[Call]) -> bool:
    """The first requests are answered: it happens while the task is at work."""
    return any(call.method == "eth_getBlockByNumber" and int(call.params[0], 16) >= 20 for call in calls)


FAULTS: dict[str, tuple[Callable[[ServedChain], None], str]] = {
    "dies": (lambda chain: chain.inject(Drop(), times=None, when=in_the_middle), "rpc_unavailable"),
    "is slow": (lambda chain: chain.inject(Delay(5.0), times=None, when=in_the_middle), "rpc_unavailable"),
    "truncates": (lambda chain: chain.inject(Truncate(300), times=None, when=in_the_middle), "rpc_unavailable"),
    "fails": (lambda chain: chain.inject(Status(503), times=None, when=in_the_middle), "rpc_unavailable"),
    "is no node": (lambda chain: chain.inject(NotJson(), times=None, when=in_the_middle), "rpc_unavailable"),
    "limits us": (lambda chain: chain.inject(Status(429), times=None, when=in_the_middle), "rpc_rate_limited"),
    "limits us in words": (
        lambda chain: chain.inject(RpcErrors(-32005, "too many requests"), times=None, when=in_the_middle),
        "rpc_rate_limited",
    ),
    "leaves answers out": (
        lambda chain: chain.inject(PartialBatch(0), times=None, when=in_the_middle),
        "rpc_missing_answer",
    ),
    "has lost a block": (lambda chain: chain.null_block(40), "rpc_missing_answer"),
    "has lost receipts": (lambda chain: chain.lose_receipts(41), "rpc_wrong_receipts"),
    "gives another block": (lambda chain: chain.misnumber(40, 41), "rpc_wrong_block"),
    "breaks the chain": (lambda chain: chain.break_parent(40), "rpc_broken_chain"),
}


@pytest.fixture(scope="module")
def served() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS) as chain:
        yield chain


@pytest.fixture
def chain(served: ServedChain, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedChain]:
    monkeypatch.setenv("TRACE_RPC_DEFAULT", served.url.replace("//", "//me:passw0rd@") + "/k3y-of-mine")
    yield served
    served.clear()
    served.restore()


@pytest.mark.parametrize("name", FAULTS)
def test_a_node_that(name: str, chain: ServedChain, bench: Bench) -> None:
    break_it, kind = FAULTS[name]
    break_it(chain)
    bench.outputs = list(TABLES)
    # What is known of nodes is kept from task to task, by their settings: each of these tests begins with none.
    impatient = {**CONFIG, "retry_seconds": 3 + list(FAULTS).index(name) / 100}
    with pytest.raises(IngestError, match=rf"^{kind}: blocks \d+ to \d+: node-1: ") as caught:
        bench.run("evm_ingest", run, impatient, blocks=(0, BLOCKS - 1))
    assert not [secret for secret in ("passw0rd", "k3y-of-mine") if secret in str(caught.value)]
    assert bench.last is not None
    assert not bench.last.written, "nothing of it can be committed"

    chain.clear()
    chain.restore()
    bench.run("evm_ingest", run, CONFIG, blocks=(0, BLOCKS - 1), attempt=2)
    wanted = expected(recorded(BLOCKS))
    for index, table in enumerate(TABLES):
        assert bench.table(index).to_pylist() == wanted[table]
