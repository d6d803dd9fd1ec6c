"""The follower on a real node, through reorganisations that the node makes itself."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.follower.anvil import CHAIN_ID, Anvil, find_anvil, running_anvil
from tests.follower.coverage import BANDS
from tests.follower.running_source import RunningSource
from tests.follower.stored_source import StoredSource
from tests.follower.world import DEEPEST
from tests.spark.evm.support import expected
from tests.support.postgres import TestCluster
from tests.support.shared_types import shared_types
from tracelake.demo.chain.recording import RecordedBlock

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TOPIC = "11" * 32
# It emits a log with 32 zero bytes whenever it is called: PUSH32 topic, PUSH1 32, PUSH1 0, LOG1, STOP. Before it, what
# copies it: 39 bytes from place 11 on.
CONTRACT = "0x" + "602780600b6000396000f3" + "7f" + TOPIC + "60206000a100"
ROUNDS, NEAR = 25, 12
"""On tables in memory: how many changes of the chain, and how deep."""
CRASHES = 0.1
"""On stored tables: how likely the follower is gone at each point of a write."""


@pytest.fixture(scope="module")
def anvil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anvil]:
    with running_anvil(find_anvil(tmp_path_factory.mktemp("anvil"))) as node:
        yield node


class AnvilChain:
    """Transactions with and without logs, in blocks and reorganisations."""

    def __init__(self, node: Anvil, rng: random.Random) -> None:
        self.node = node
        self.rng = rng
        self.sender, self.other = node.call("eth_accounts")
        name = self._send(data=CONTRACT, gas="0x30d40")
        node.call("evm_mine")
        self.contract: str = node.call("eth_getTransactionReceipt", name)["contractAddress"]
        node.call("anvil_mine", hex(DEEPEST))  # no reorganisation reaches the contract itself

    def grow(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            for _ in range(self.rng.randrange(4)):
                if self.rng.random() < 0.6:
                    self._send(to=self.contract, gas="0x186a0")
                else:
                    self._send(to=self.other, value=hex(self.rng.randrange(1000)), gas="0x5208")
            self.node.call("evm_mine")

    def reorganise(self, depth: int | None = None) -> int:
        """The same number of other blocks, the first of them with a transaction that was never there, and another one.
        Blocks without one would be the same again."""
        depth = depth or self.rng.randrange(1, NEAR + 1)
        call = {"from": self.other, "to": self.contract, "gas": "0x186a0"}
        first = {**call, "value": hex(self.rng.randrange(1, 10**9))}
        self.node.call("anvil_reorg", depth, [[first, 0], [call, self.rng.randrange(depth)]])
        return depth

    def _send(self, **fields: str) -> str:
        name: str = self.node.call("eth_sendTransaction", {"from": self.sender, **fields})
        return name

    def blocks(self) -> list[RecordedBlock]:
        """All of the chain, as the node has it now."""
        last = int(self.node.head()["number"], 16)
        return [
            RecordedBlock(
                number=number,
                block=self.node.call("eth_getBlockByNumber", hex(number), True),
                receipts=self.node.call("eth_getBlockReceipts", hex(number)),
            )
            for number in range(last + 1)
        ]


@pytest.mark.parametrize("manner", ["polled", "subscribed", "filtered"])
def test_tables_are_those_of_the_node_after_its_reorganisations(
    anvil: Anvil, monkeypatch: pytest.MonkeyPatch, manner: str
) -> None:
    subscribed = manner == "subscribed"
    monkeypatch.setenv("TRACE_RPC_DEFAULT", f"{anvil.http},{anvil.ws}" if subscribed else anvil.http)
    chain = AnvilChain(anvil, random.Random(manner))
    log_filter = {"tables": ["blocks", "logs"], "filter": {"addresses": [chain.contract]}}
    config: dict[str, Any] = log_filter if manner == "filtered" else {}
    depths = []
    with RunningSource(chain_id=CHAIN_ID, poll_min_seconds=0.05, poll_max_seconds=0.2, **config) as source:
        for _ in range(ROUNDS):
            chain.grow()
            if chain.rng.random() < 0.6:
                depths.append(chain.reorganise())
                if chain.rng.random() < 0.3:
                    depths.append(chain.reorganise())  # perhaps before the first was seen
            if chain.rng.random() < 0.7:
                wait_for_head(source, anvil)
        wait_for_head(source, anvil)
        if subscribed:
            assert "subscription 1 announces new blocks" in source.progress
    assert depths
    assert source.reports[-1].reorgs > 0
    wanted = expected(chain.blocks(), CHAIN_ID)
    if manner == "filtered":
        wanted["logs"] = [row for row in wanted["logs"] if row["address"] == bytes.fromhex(chain.contract[2:])]
    assert wanted["logs"]
    for table in source.config.tables:
        assert source.rows(table) == wanted[table]


@pytest.mark.parametrize("manner", ["polled", "subscribed"])
def test_stored_tables_are_those_of_the_node_through_deep_reorganisations_and_crashes(
    anvil: Anvil, cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manner: str
) -> None:
    """To all depths that need no repair."""
    monkeypatch.setenv("TRACE_RPC_DEFAULT", anvil.http if manner == "polled" else f"{anvil.http},{anvil.ws}")
    rng = random.Random(f"stored {manner}")
    chain = AnvilChain(anvil, rng)
    depths = [*(rng.randint(first, last) for first, last in BANDS * 2), DEEPEST]
    rng.shuffle(depths)
    config = {"chain_id": CHAIN_ID, "finality_depth_blocks": DEEPEST, "unit_blocks": 10, "batch_blocks": 20}
    pace = {"poll_min_seconds": 0.05, "poll_max_seconds": 0.1}
    crashing = random.Random(f"crashes {manner}")
    source = StoredSource(cluster.fresh("data"), tmp_path, crashing, CRASHES, **config, **pace)
    with shared_types(), source:
        wait_for_head(source, anvil)
        for depth in depths:
            chain.grow()
            wait_for_head(source, anvil)
            chain.reorganise(depth)
            if rng.random() < 0.5:
                chain.grow()
                chain.reorganise(rng.randint(1, depth))  # perhaps before the first was seen
        wait_for_head(source, anvil)
        rewrites = source.stored.record
        assert set(depths) <= set(rewrites.depths)
        assert len(source.crashes) >= len(depths) / 2
        first = rewrites.first
        assert first is not None
        wanted = expected(chain.blocks()[first:], CHAIN_ID)
        assert wanted["logs"]
        for table in source.config.tables:
            assert source.rows(table) == wanted[table]


def wait_for_head(source: RunningSource, node: Anvil) -> None:
    head = node.head()
    number, name = int(head["number"], 16), head["hash"]
    source.wait_until(lambda: source.is_stored(number, name), f"the head {number} did not come")
