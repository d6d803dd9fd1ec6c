"""Trees of calls, their rows in plain Python, and how nodes of either form tell them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests.spark.evm.support import CHAIN_ID
from tracelake.demo.chain.recording import RecordedBlock

Json = dict[str, Any]
ADDRESSES = [f"0x{number:040x}" for number in (0xA1, 0x1234567890, 2**160 - 1)]
ADDRESSES[0] = "0x" + "a1" * 20
PRECOMPILED = ["0x" + "0" * 39 + "1", "0x" + "0" * 38 + "0a", "0x" + "0" * 37 + "100"]
ERRORS = {
    "reverted": ("Reverted", "execution reverted"),
    "out_of_gas": ("Out of gas", "out of gas"),
    "bad_instruction": ("Bad instruction", "invalid opcode: INVALID"),
    "bad_jump": ("Bad jump destination", "invalid jump destination"),
    "stack": ("Out of stack", "stack underflow (0 <=> 1)"),
}
"""By our name: as `trace_block` and as `callTracer` say it."""


@dataclass
class CallNode:
    kind: str = "call"
    sender: str = ADDRESSES[0]
    target: str = ADDRESSES[1]
    value: int = 0
    gas: int = 21_000
    gas_used: int = 5
    input: str = "0x"
    output: str = "0x"
    error: str | None = None
    inner: list["CallNode"] = field(default_factory=list)

    @property
    def is_create(self) -> bool:
        return self.kind in ("create", "create2")

    @property
    def is_hidden(self) -> bool:
        return self.kind != "selfdestruct" and self.target in PRECOMPILED and self.moved == 0 and not self.is_create

    @property
    def moved(self) -> int:
        return 0 if self.kind in ("delegatecall", "staticcall") else self.value

    @property
    def shown(self) -> list["CallNode"]:
        return [node for node in self.inner if not node.is_hidden]


def rows_of(number: int, trees: Sequence[tuple[str, CallNode]], rewards: Sequence[Json] = ()) -> list[Json]:
    """The rows of a block; `trees`: by the hash of each transaction, in order."""
    rows: list[Json] = []

    def add(tree: CallNode, address: list[int], lasts: bool, place: int, name: str) -> None:
        lasts = lasts and tree.error is None
        ends = tree.kind == "selfdestruct"
        says = tree.error in (None, "reverted")
        rows.append(
            {
                "block_number": number,
                "transaction_index": place,
                "transaction_hash": bytes.fromhex(name[2:]),
                "trace_index": len(rows),
                "trace_address": address,
                "subtraces": len(tree.shown),
                "trace_type": "selfdestruct" if ends else "create" if tree.is_create else "call",
                "call_type": None if ends else tree.kind,
                "reward_type": None,
                "from_address": _bytes(tree.sender),
                "to_address": None if tree.is_create and tree.error else _bytes(tree.target),
                **_value(tree.moved),
                "gas": None if ends else tree.gas,
                "gas_used": tree.gas_used if says and not ends else None,
                "input": None if ends else _bytes(tree.input),
                "output": _bytes(tree.output) if not ends and (says and not (tree.is_create and tree.error)) else None,
                "error": tree.error,
                "success": lasts,
                "chain_id": CHAIN_ID,
            }
        )
        for index, inner in enumerate(tree.shown):
            add(inner, [*address, index], lasts, place, name)

    for place, (name, tree) in enumerate(trees):
        add(tree, [], True, place, name)
    for reward in rewards:
        nothing = dict.fromkeys(
            ("transaction_index", "transaction_hash", "call_type", "from_address", "gas", "gas_used", "input", "output")
        )
        rows.append(
            {
                **nothing,
                "block_number": number,
                "trace_index": len(rows),
                "trace_address": [],
                "subtraces": 0,
                "trace_type": "reward",
                "reward_type": reward["rewardType"],
                "to_address": _bytes(reward["author"]),
                **_value(int(reward["value"], 16)),
                "error": None,
                "success": True,
                "chain_id": CHAIN_ID,
            }
        )
    return rows


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _value(value: int) -> Json:
    return {"value_binary": value.to_bytes(32, "big"), "value_string": str(value), "value_f64": float(value)}


def as_block_traces(
    one: RecordedBlock, trees: Sequence[tuple[str, CallNode]], rewards: Sequence[Json] = ()
) -> list[Json]:
    """What `trace_block` says."""
    about = {"blockHash": one.block["hash"], "blockNumber": one.number}

    def walk(tree: CallNode, address: list[int], place: int, name: str) -> Iterator[Json]:
        whole = {
            **about,
            "transactionHash": name,
            "transactionPosition": place,
            "traceAddress": address,
            "subtraces": len(tree.shown),
        }
        if tree.kind == "selfdestruct":
            action = {"address": tree.sender, "refundAddress": tree.target, "balance": hex(tree.value)}
            yield {**whole, "type": "suicide", "action": action, "result": None}
            return
        action = {"from": tree.sender, "value": hex(tree.value), "gas": hex(tree.gas)}
        result: Json = {"gasUsed": hex(tree.gas_used)}
        if tree.is_create:
            action |= {"init": tree.input, "creationMethod": tree.kind}
            result |= {"address": tree.target, "code": tree.output}
        else:
            action |= {"callType": tree.kind, "to": tree.target, "input": tree.input}
            result |= {"output": tree.output}
        told = {**whole, "type": "create" if tree.is_create else "call", "action": action}
        if tree.error is None:
            yield {**told, "result": result}
        else:
            kept = result if tree.error == "reverted" else None
            yield {**told, "error": ERRORS[tree.error][0], "result": kept}
        for index, inner in enumerate(tree.shown):
            yield from walk(inner, [*address, index], place, name)

    traces = [trace for place, (name, tree) in enumerate(trees) for trace in walk(tree, [], place, name)]
    nobody: Json = {
        "transactionHash": None,
        "transactionPosition": None,
        "traceAddress": [],
        "subtraces": 0,
        "result": None,
    }
    return traces + [{**about, **nobody, "type": "reward", "action": reward} for reward in rewards]


def as_call_frames(trees: Sequence[tuple[str, CallNode]]) -> list[Json]:
    """What `debug_traceBlockByHash` says with `callTracer`."""

    def frame(tree: CallNode) -> Json:
        told: Json = {"from": tree.sender, "gas": hex(tree.gas), "gasUsed": hex(tree.gas_used), "to": tree.target}
        told |= {"input": tree.input, "type": tree.kind.upper()}
        if tree.kind == "selfdestruct":
            told |= {"gas": "0x0", "gasUsed": "0x0", "input": "0x"}
        if tree.output != "0x":
            told["output"] = tree.output
        if tree.kind != "staticcall":
            told["value"] = hex(tree.value)
        if tree.error is not None:
            told["error"] = ERRORS[tree.error][1]
            if tree.is_create:
                del told["to"]
        if tree.inner:
            told["calls"] = [frame(inner) for inner in tree.inner]
        return told

    return [{"txHash": name, "result": frame(tree)} for name, tree in trees]


HEX = st.binary(max_size=40).map(lambda raw: "0x" + raw.hex())


def _nodes(inner: st.SearchStrategy[list[CallNode]]) -> st.SearchStrategy[CallNode]:
    return st.builds(
        CallNode,
        kind=st.sampled_from(["call", "delegatecall", "staticcall", "callcode", "create", "create2"]),
        sender=st.sampled_from(ADDRESSES),
        target=st.sampled_from(ADDRESSES),
        value=st.sampled_from([0, 1, 2**64, 2**256 - 1]),
        gas=st.integers(0, 2**64 - 1),
        gas_used=st.integers(0, 2**64 - 1),
        input=HEX,
        output=HEX,
        error=st.sampled_from([None, None, *ERRORS]),
        inner=inner,
    )


LEAVES = _nodes(st.just([])) | st.builds(
    CallNode,
    kind=st.sampled_from(["call", "staticcall", "delegatecall", "selfdestruct"]),
    target=st.sampled_from([*ADDRESSES, *PRECOMPILED]),
    value=st.sampled_from([0, 7]),
)
TREES = _nodes(
    st.lists(st.recursive(LEAVES, lambda some: _nodes(st.lists(some, max_size=3)), max_leaves=8), max_size=3)
)
