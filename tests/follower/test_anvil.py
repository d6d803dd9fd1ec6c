"""The follower on a real node, through reorganisations that the node makes itself."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.follower.anvil import CHAIN_ID, Anvil, find_anvil, running_anvil
from tests.follower.running_source import RunningSource
from tests.spark.evm.support import expected
from tracelake.demo.chain.recording import RecordedBlock

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TOPIC = "11" * 32
# It emits a log with 32 zero bytes whenever it is called: PUSH32 topic, PUSH1 32, PUSH1 0, LOG1, STOP. Before it, what
# copies it: 39 bytes from place 11 on.
CONTRACT = "0x" + "602780600b6000396000f3" + "7f" + TOPIC + "60206000a100"
ROUNDS, DEEPEST = 25, 12


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
        node.call("anvil_mine", hex(DEEPEST))  # what follows never reaches the contract itself

    def grow(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            for _ in range(self.rng.randrange(4)):
                if self.rng.random() < 0.6:
                    self._send(to=self.contract, gas="0x186a0")
                else:
                    self._send(to=self.other, value=hex(self.rng.randrange(1000)), gas="0x5208")
            self.node.call("evm_mine")

    def reorganise(self) -> int:
        """The same number of other blocks, one of them with a new transaction."""
        depth = self.rng.randrange(1, DEEPEST + 1)
        call = {"from": self.other, "to": self.contract, "gas": "0x186a0"}
        self.node.call("anvil_reorg", depth, [[call, self.rng.randrange(depth)]])
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


def wait_for_head(source: RunningSource, node: Anvil) -> None:
    head = node.head()
    number, name = int(head["number"], 16), head["hash"]

    def is_stored() -> bool:
        link = source.tables.links.get(number)
        return link is not None and link.hash == name

    source.wait_until(is_stored, f"the head {number} did not come")
