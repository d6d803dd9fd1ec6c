"""The plan of a demo: the chain, the blocks, the DAG that reads them.

A node of the person's own is asked before anything is started: which chain it is of, how far it has come, whether it
has the blocks. Of its address only scheme, host and port are ever shown.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelake.demo import DemoError
from tracelake.demo.chain.recording import Recording
from tracelake.example_files import RECORDED_CHAIN, find_example
from tracelake.spark.evm.calls import answers_of, quantity
from tracelake.spark.evm.endpoints import PREFIX, RpcEndpoint, parse_endpoint
from tracelake.spark.evm.errors import RefusedError, RpcError, UnavailableError
from tracelake.spark.evm.node import ProgressDeadline, RpcNode, RpcOptions
from tracelake.wire.jobs import BlockRange

DAG = "token_flows"
SOURCE = "backfill"
SPLIT = "split"
WRITERS = ("by_token", "by_sender")
"""The jobs that write to the table."""
SUMMARY = "summarise"
"""The job whose units are days. A day is computed again when more of its blocks have come."""
JOBS = ("ingest", "check", "decode", SUMMARY, *WRITERS)
"""The jobs that compute blocks, in order."""
BLOCK_JOBS = tuple(job for job in JOBS if job != SUMMARY)
"""The jobs that compute each unit of blocks."""
TABLE = "large_transfers"
FLOWS = "hourly_flows"
DATASETS = ("blocks", "transactions", "logs", "findings", "transfers", "undecodable", FLOWS)

UNITS = 4
_SMALLEST_UNIT, _LARGEST_UNIT = 50, 1000
_DEFAULT_BLOCKS = 100
_BEHIND_HEAD = 10
"""How many of the newest blocks of a live chain are left out by default, because they may still be replaced."""
_PATIENCE_SECONDS = 15.0
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class DemoPlan:
    chain_id: int
    first: int
    last: int
    unit: int
    """Blocks of one unit of work; units begin at multiples of it."""
    recording: Path | None = None
    """The recorded chain, or None for a chain of the person's own."""
    url: str | None = field(default=None, repr=False)
    """The address of the user's own node; it may hold a key."""
    label: str = "the recorded chain"

    @property
    def blocks(self) -> int:
        return self.last - self.first + 1

    @property
    def units(self) -> int:
        return self.last // self.unit - self.first // self.unit + 1

    def unit_start(self, block: int) -> int:
        """The first block of the unit that the block is in."""
        return max(self.first, block // self.unit * self.unit)

    def document(self, *, without_mints: bool = False) -> bytes:
        """The DAG as it is shipped, for this chain and units of this size; or with a schema that forgets mints."""
        text = find_example("token_flows/flows.yaml").read_text()
        if without_mints:
            text = _replaced(text, r"enum: \[move, mint, burn\]", "enum: [move, burn]")
        text = _replaced(text, r"chain_id: \d+", f"chain_id: {self.chain_id}")
        return _replaced(text, r"config: \{size: \d+\}", f"config: {{size: {self.unit}}}").encode()


def unit_for(blocks: int) -> int:
    """The size of a unit: several units for parallel work, but not a great many."""
    steps = -(-blocks // (UNITS * _SMALLEST_UNIT))
    return min(max(steps, 1) * _SMALLEST_UNIT, _LARGEST_UNIT)


def recorded(blocks: BlockRange | None) -> DemoPlan:
    recording = find_example(RECORDED_CHAIN)
    head = Recording(recording).head
    block_range = blocks or BlockRange(start=0, end=head.blocks - 1)
    if block_range.end >= head.blocks:
        raise DemoError(f"the recorded chain has blocks 0 to {head.blocks - 1:,}; give --blocks within these")
    unit = unit_for(block_range.end - block_range.start + 1)
    return DemoPlan(int(head.chain_id, 16), block_range.start, block_range.end, unit, recording=recording)


def own(address: str, blocks: BlockRange | None) -> DemoPlan:
    """The plan for the node at this URL, or at the one that `TRACE_RPC_<NAME>` holds."""
    url = _address(address)
    try:
        endpoint = parse_endpoint(url)
    except ValueError as error:
        raise DemoError(f"--rpc: {error}") from None
    chain_id, head = _ask(endpoint)
    if blocks is None:
        if head == 0:
            raise DemoError(
                f"{endpoint.label} (chain {chain_id}) has no block but the first: it is empty, or it is still getting "
                "its blocks. Say --blocks 0-0 if you mean that one"
            )
        last = head - _BEHIND_HEAD if head >= _DEFAULT_BLOCKS + _BEHIND_HEAD else head
        blocks = BlockRange(start=max(0, last - _DEFAULT_BLOCKS + 1), end=last)
    elif blocks.end > head:
        raise DemoError(
            f"{endpoint.label} (chain {chain_id}) has blocks up to {head:,}; --blocks ends at {blocks.end:,}"
        )
    _check_there(endpoint, blocks)
    unit = unit_for(blocks.end - blocks.start + 1)
    return DemoPlan(chain_id, blocks.start, blocks.end, unit, url=url, label=endpoint.label)


def _address(text: str) -> str:
    if not _NAME.fullmatch(text):
        return text
    variable = PREFIX + text.upper()
    url = os.environ.get(variable, "").strip()
    if not url:
        raise DemoError(f"--rpc {text} stands for the address in {variable}, and that is not set")
    if "," in url:
        raise DemoError(f"{variable} names several nodes; give one of them to --rpc")
    return url


_words = answers_of(str)
_blocks = answers_of(dict[str, Any])


def _ask(endpoint: RpcEndpoint) -> tuple[int, int]:
    """The chain's id and the newest block."""
    node = _node(endpoint)
    try:
        chain, head = node.ask([("eth_chainId", []), ("eth_blockNumber", [])], _words, _patience())
        if chain is None or head is None:
            raise DemoError(f"{endpoint.label} does not say which chain it is of, or how far it has come")
        return quantity(chain, endpoint.label), quantity(head, endpoint.label)
    except RpcError as error:
        raise _unusable(endpoint, error) from None
    finally:
        node.close()


def _check_there(endpoint: RpcEndpoint, blocks: BlockRange) -> None:
    """The ends of the range: a node may have thrown away what is old."""
    ends = list(dict.fromkeys((blocks.start, blocks.end)))
    node = _node(endpoint)
    try:
        answers = node.ask([("eth_getBlockByNumber", [hex(end), False]) for end in ends], _blocks, _patience())
    except RpcError as error:
        raise _unusable(endpoint, error) from None
    finally:
        node.close()
    for number, block in zip(ends, answers, strict=True):
        if block is None:
            raise DemoError(f"{endpoint.label} does not have block {number:,}; give --blocks that it has")


def _node(endpoint: RpcEndpoint) -> RpcNode:
    return RpcNode(endpoint, RpcOptions(chain_id=0, batch_size=1))


def _patience() -> ProgressDeadline:
    return ProgressDeadline(_PATIENCE_SECONDS)


def _unusable(endpoint: RpcEndpoint, error: RpcError) -> DemoError:
    hint = "is that the address of a node's JSON-RPC?"
    if isinstance(error, RefusedError):
        hint = "look at the key or the path of the address"
    elif isinstance(error, UnavailableError):
        hint = "is it running there?"
    return DemoError(f"the node {endpoint.label} cannot be used: {error}; {hint}")


def _replaced(text: str, pattern: str, by: str) -> str:
    changed, times = re.subn(pattern, by, text)
    assert times == 1, pattern
    return changed
