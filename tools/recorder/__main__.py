"""`make record-chain`: from a seed to examples/token_flows/chain.jsonl.xz, in a few minutes.

Needs Node.js with npm (the node, the compiler and a signer come from there). Nothing else in the repository needs it.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tools.recorder.days import Moment, moments
from tools.recorder.ledger import Ledger
from tools.recorder.node import HARDFORK, Node, Tools
from tools.recorder.town import ACCOUNTS, Town
from tracelake.demo.chain.packing import Json
from tracelake.demo.chain.recording import Recording, write_recording

OUT = Path(__file__).parents[2] / "examples" / "token_flows" / "chain.jsonl.xz"
MNEMONIC = "test test test test test test test test test test test junk"
CHAIN_ID = 1_337_001
START = 1_772_409_600  # Monday, 2 March 2026, 00:00 UTC
VALIDATORS = tuple(f"0x{number:02x}{'5afe' * 9}{number:02x}" for number in range(1, 6))
_OPENING_SECONDS = 12


class Chain:
    """Makes one block after the other and hands out what the node says of each."""

    def __init__(self, node: Node, ledger: Ledger, random: Random) -> None:
        self._node = node
        self._ledger = ledger
        self._random = random

    def coming(self, moment: Moment) -> None:
        self._ledger.fees.base = moment.base_fee
        self._node.call("anvil_setNextBlockBaseFeePerGas", hex(moment.base_fee))
        self._node.call("evm_setNextBlockTimestamp", moment.timestamp)
        self._node.call("anvil_setCoinbase", self._random.choice(VALIDATORS))

    def mine(self) -> None:
        self._node.call("evm_mine")

    def read(self, number: int) -> tuple[Json, list[Json]]:
        block: Json = self._node.call("eth_getBlockByNumber", hex(number), True)
        receipts: list[Json] = self._node.call("eth_getBlockReceipts", hex(number))
        return block, receipts


def record(node: Node, ledger: Ledger, seed: int, count: int) -> Iterator[tuple[Json, list[Json]]]:
    random = Random(seed)  # noqa: S311 (a chain that comes out the same each time)
    chain, town = Chain(node, ledger, random), Town(ledger, random)
    times = moments(random, START, count)
    planned = _plan(random, count)
    yield chain.read(0)
    number = 0

    def created(sent: str) -> str:
        address: str = node.call("eth_getTransactionReceipt", sent)["contractAddress"]
        return address

    ready = Moment(START + _OPENING_SECONDS, 0, 0, ledger.fees.base)
    chain.coming(ready)
    for _ in town.openings(created):
        chain.mine()
        number += 1
        yield chain.read(number)
        ready = Moment(ready.timestamp + _OPENING_SECONDS, 0, 0, ready.base_fee)
        chain.coming(ready)
    for moment in times:
        if moment.timestamp <= ready.timestamp:
            continue
        number += 1
        if number >= count:
            return
        chain.coming(moment)
        for _ in range(moment.transactions):
            town.act()
        for happening in planned.get(number, ()):
            if happening == "airdrop":
                town.airdrop(random.choice((100, 120)))
            else:
                getattr(town, happening)()
        chain.mine()
        yield chain.read(number)


def _plan(random: Random, count: int) -> dict[int, list[str]]:
    """Rare things at places that depend on the seed alone."""
    planned: dict[int, list[str]] = {}
    first = min(100, count // 2)
    for happening, times in (("airdrop", 6), ("post_blobs", 14), ("batch_as_delegate", 12)):
        for _ in range(times):
            planned.setdefault(random.randrange(first + 1, count), []).append(happening)
    planned.setdefault(first, []).append("delegate")
    return planned


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.recorder", description=__doc__)
    parser.add_argument("--seed", type=int, default=20260302)
    parser.add_argument("--blocks", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="record-chain-") as scratch:
        tools = Tools(Path(scratch))
        _say("Installing the node, the compiler and the signer ...")
        tools.install()
        compiled = tools.compile()
        with (
            tools.node(mnemonic=MNEMONIC, chain_id=CHAIN_ID, accounts=ACCOUNTS, timestamp=START) as node,
            tools.signer(MNEMONIC) as signer,
        ):
            _make(node, Ledger(**_ledger(node, signer, compiled, arguments.seed)), compiled, arguments)


def _ledger(node: Node, signer: Any, compiled: dict[str, Any], seed: int) -> dict[str, Any]:
    return {
        "node": node,
        "signer": signer,
        "random": Random(f"wallets {seed}"),  # noqa: S311 (a chain that comes out the same each time)
        "chain_id": CHAIN_ID,
        "contracts": compiled["contracts"],
        "accounts": node.call("eth_accounts"),
    }


def _make(node: Node, ledger: Ledger, compiled: dict[str, Any], arguments: argparse.Namespace) -> None:
    client = node.call("web3_clientVersion")
    given: list[tuple[Json, list[Json]]] = []
    for answers in record(node, ledger, arguments.seed, arguments.blocks):
        given.append(answers)
        if len(given) % 250 == 0:
            _say(f"  {len(given)} of {arguments.blocks} blocks")
    about = {
        "seed": arguments.seed,
        "node": client,
        "hardfork": HARDFORK,
        "solc": compiled["solc"],
        "license": "Apache-2.0",
    }
    _say("Writing ...")
    unfinished = arguments.out.with_name(arguments.out.name + ".part")
    write_recording(
        unfinished, chain_id=node.call("eth_chainId"), client=client, about=about, blocks=given, count=len(given)
    )
    _say("Reading it back ...")
    for (block, receipts), read in zip(given, Recording(unfinished), strict=True):
        if (block, receipts) != (read.block, read.receipts):
            raise SystemExit(f"Block {read.number} did not come back as the node gave it; nothing was replaced.")
    unfinished.replace(arguments.out)
    _say(f"{arguments.out}: {len(given)} blocks, {arguments.out.stat().st_size / 1e6:.2f} MB")


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)  # noqa: T201 (a tool for people)


if __name__ == "__main__":
    main()
