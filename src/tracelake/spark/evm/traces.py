"""Traces of a block in one flat form, from either form that nodes have.

`trace_block` gives a list in the order of execution, each with its place in the tree of calls; `callTracer` gives a
tree for each transaction. Both become columns of text (`BlockTraces`) as soon as a block is decoded, as receipts
do. What the two forms, or nodes of one form, say differently is made the same:

- calls of precompiled contracts that move no value are left out, and the others are numbered without them
- delegatecall and staticcall move no value, so theirs is zero
- gas and output of a call that failed otherwise than by a revert are null
- errors have the names of `_ERRORS`
"""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from tracelake.spark.evm.texts import Texts

_DEEP = 20_000
_PRECOMPILED = re.compile(r"0x0{37}(?!000)[01][0-9a-f]{2}", re.IGNORECASE)
"""0x01 to 0x1ff: nobody can deploy a contract there."""
_ZERO = re.compile(r"0x0*")
_MOST_ERROR = 100
_ERRORS = (
    ("reverted", re.compile(r"(execution )?revert(ed)?")),
    ("out_of_gas", re.compile(r"(.* )?out ?of ?gas")),
    ("bad_instruction", re.compile(r"bad ?instruction|(invalid|undefined) ?(opcode|instruction)\b.*")),
    ("bad_jump", re.compile(r"(bad|invalid) ?jump( ?destination)?")),
    ("stack", re.compile(r"out of stack|stack ?(underflow|overflow|limit reached).*")),
    ("static", re.compile(r"mutable call in static context|write protection|static ?call ?violation.*")),
    ("precompile", re.compile(r"built-in failed|precompile.*")),
    ("balance", re.compile(r"insufficient balance.*|not ?enough ?balance.*")),
    ("depth", re.compile(r"max call depth exceeded|call ?too ?deep|.*call depth.*")),
)
"""By the words that nodes have for them."""
TRACE_TEXTS = ("from_", "to", "value", "gas", "gas_used", "input", "output")
"""The columns of hex text."""


class TraceAction(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    call_type: str | None = None
    from_: str | None = msgspec.field(name="from", default=None)
    gas: str | None = None
    input: str | None = None
    to: str | None = None
    value: str | None = None
    init: str | None = None
    creation_method: str | None = None
    address: str | None = None
    balance: str | None = None
    refund_address: str | None = None
    author: str | None = None
    reward_type: str | None = None


class TraceResult(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    gas_used: str | None = None
    output: str | None = None
    address: str | None = None
    code: str | None = None


class BlockTrace(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """An item of `trace_block`."""

    action: TraceAction
    block_hash: str
    error: str | None = None
    result: TraceResult | None = None
    subtraces: int
    trace_address: list[int]
    transaction_hash: str | None = None
    transaction_position: int | None = None
    type: str


class CallFrame(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """A call of `callTracer`, with the calls inside it."""

    from_: str = msgspec.field(name="from")
    gas: str | None = None
    gas_used: str | None = None
    to: str | None = None
    input: str | None = None
    output: str | None = None
    error: str | None = None
    calls: list["CallFrame"] = []
    value: str | None = None
    type: str


class TracedTransaction(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """An item of `debug_traceBlockByHash`."""

    tx_hash: str | None = None
    result: CallFrame | None = None
    error: str | None = None


class FlatTrace(NamedTuple):
    """A row, before it is numbered."""

    depth: int
    type: str
    call_type: str | None
    from_: str | None
    to: str | None
    value: str | None
    gas: str | None
    gas_used: str | None
    input: str | None
    output: str | None
    error: str | None
    reward_type: str | None = None


class BlockTraces:
    """The traces of one block, in order: those of its transactions, then the rewards."""

    __slots__ = (
        "addresses",
        "block_hashes",
        "call_types",
        "columns",
        "counts",
        "errors",
        "problem",
        "reward_types",
        "subtraces",
        "successes",
        "transactions",
        "types",
    )

    def __init__(
        self,
        groups: Sequence[tuple[str | None, Sequence[FlatTrace]]],
        rewards: Sequence[FlatTrace] = (),
        block_hashes: frozenset[str] = frozenset(),
        problem: str | None = None,
    ) -> None:
        """`groups`: the traces of each transaction, with its hash, if the node says it."""
        self.problem = problem
        """Why they are not believed, whatever block they are of."""
        self.block_hashes = block_hashes
        """Of all blocks that they say they are of."""
        self.transactions = [name for name, _ in groups]
        self.counts: list[int] = []
        """Of the rows of each transaction."""
        self.addresses: list[list[int]] = []
        self.subtraces: list[int] = []
        self.successes: list[bool] = []
        rows: list[FlatTrace] = []
        for _, traces in groups:
            own = _leave_out_precompiled(traces)
            self.counts.append(len(own))
            self._number(own)
            rows += own
        for row in rewards:
            self._add([], succeeded=True)
            rows.append(row)
        self.types = [row.type for row in rows]
        self.call_types = [row.call_type for row in rows]
        self.reward_types = [row.reward_type for row in rows]
        self.errors = [row.error for row in rows]
        self.columns = {name: Texts.of([getattr(row, name) for row in rows]) for name in TRACE_TEXTS}

    def __len__(self) -> int:
        return len(self.types)

    def _number(self, rows: Sequence[FlatTrace]) -> None:
        """Gives each its place in the tree of calls."""
        address: list[int] = []
        # Of the calls around a row, the outermost first: whether they last, and which rows they are.
        succeeded: list[bool] = []
        places: list[int] = []
        for row in rows:
            depth = row.depth
            if depth:
                is_first = depth > len(address)
                address = [*address, 0] if is_first else [*address[: depth - 1], address[depth - 1] + 1]
                self.subtraces[places[depth - 1]] += 1
            lasts = row.error is None and (not depth or succeeded[depth - 1])
            succeeded[depth:] = [lasts]
            places[depth:] = [len(self.addresses)]
            self._add(address, succeeded=lasts)

    def _add(self, address: list[int], *, succeeded: bool) -> None:
        self.addresses.append(address)
        self.subtraces.append(0)
        self.successes.append(succeeded)


def pack_block_traces(traces: Sequence[BlockTrace]) -> BlockTraces:
    """Of an answer to `trace_block`."""
    groups: list[tuple[str | None, list[FlatTrace]]] = []
    rewards: list[FlatTrace] = []
    problem = None
    position: int | None = -1
    for trace in traces:
        if trace.transaction_hash is None:
            if trace.type != "reward":
                problem = "a trace without a transaction is no reward"
            rewards.append(_flat_trace(trace))
            continue
        if not trace.trace_address:
            groups.append((trace.transaction_hash, []))
            position = trace.transaction_position
        elif not groups or groups[-1][0] != trace.transaction_hash or trace.transaction_position != position:
            problem = "traces are not in the order of their transactions"
            break
        groups[-1][1].append(_flat_trace(trace))
    block_hashes = frozenset(trace.block_hash for trace in traces)
    problem = problem or _find_gap(traces)
    return BlockTraces([], (), block_hashes, problem) if problem else BlockTraces(groups, rewards, block_hashes)


def _find_gap(traces: Sequence[BlockTrace]) -> str | None:
    """Each trace must be where the one before it leads to, and have as many below it as it says."""
    open_calls: list[int] = []
    """How many calls of each that is open have not come yet."""
    address: list[int] = []
    for trace in traces:
        depth = len(trace.trace_address)
        if depth:
            first = depth == len(address) + 1
            follows = [*address, 0] if first else [*address[: depth - 1], *(n + 1 for n in address[depth - 1 : depth])]
            if trace.trace_address != follows or any(open_calls[depth:]):
                return "traces are missing between others"
            open_calls[depth - 1] -= 1
        elif any(open_calls):
            return "traces are missing between others"
        open_calls[depth:] = [trace.subtraces]
        address = trace.trace_address
    return "traces are missing at the end" if any(open_calls) else None


def _flat_trace(trace: BlockTrace) -> FlatTrace:
    action, result, depth = trace.action, trace.result or TraceResult(), len(trace.trace_address)
    error = name_error(trace.error)
    if trace.type == "reward":
        return _transfer(depth, "reward", None, action.author, action.value, None, action.reward_type)
    if trace.type in ("suicide", "selfdestruct"):
        return _transfer(depth, "selfdestruct", action.address, action.refund_address, action.balance, error)
    says = error in (None, "reverted")
    if trace.type == "create":
        method = None if action.creation_method is None else action.creation_method.lower()
        return FlatTrace(
            depth,
            "create",
            method,
            action.from_,
            result.address if error is None else None,
            action.value,
            action.gas,
            result.gas_used if says else None,
            action.init,
            result.code if error is None else None,
            error,
        )
    kind = action.call_type or "call"
    return FlatTrace(
        depth,
        trace.type,
        kind,
        action.from_,
        action.to,
        _moved(kind, action.value),
        action.gas,
        result.gas_used if says else None,
        action.input,
        result.output if says else None,
        error,
    )


def _transfer(
    depth: int,
    kind: str,
    source: str | None,
    target: str | None,
    value: str | None,
    error: str | None,
    reward_type: str | None = None,
) -> FlatTrace:
    """What moves value and calls nobody."""
    return FlatTrace(depth, kind, None, source, target, value, None, None, None, None, error, reward_type)


def pack_call_frames(transactions: Sequence[TracedTransaction]) -> BlockTraces:
    """Of an answer to `debug_traceBlockByHash` with `callTracer`."""
    failed = next((one for one in transactions if one.result is None), None)
    if failed is not None:
        return BlockTraces([], problem="a transaction has no trace")
    return BlockTraces([(one.tx_hash, list(_walk(one.result))) for one in transactions])  # type: ignore[arg-type]


def _walk(root: CallFrame) -> Iterator[FlatTrace]:
    """Without recursion: calls are nested up to 1,024 deep."""
    stack: list[tuple[int, CallFrame]] = [(0, root)]
    while stack:
        depth, frame = stack.pop()
        yield _flat_frame(depth, frame)
        stack += [(depth + 1, call) for call in reversed(frame.calls)]


def _flat_frame(depth: int, frame: CallFrame) -> FlatTrace:
    kind, error = frame.type.lower(), name_error(frame.error)
    if kind == "selfdestruct":
        return _transfer(depth, kind, frame.from_, frame.to, frame.value or "0x0", error)
    is_create = kind in ("create", "create2")
    says = error in (None, "reverted")
    output = frame.output or "0x"
    return FlatTrace(
        depth,
        "create" if is_create else "call",
        kind,
        frame.from_,
        None if is_create and error is not None else frame.to,
        frame.value or "0x0" if is_create else _moved(kind, frame.value),
        frame.gas,
        frame.gas_used if says else None,
        frame.input or "0x",
        output if error is None or (says and not is_create) else None,
        error,
    )


def _moved(kind: str, value: str | None) -> str:
    return "0x0" if value is None or kind in ("delegatecall", "staticcall") else value


def _leave_out_precompiled(rows: Sequence[FlatTrace]) -> list[FlatTrace]:
    """Nodes of the one form show calls of precompiled contracts; those of the other do not, unless value is moved."""
    following = [*(row.depth for row in rows[1:]), 0]
    return [row for row, depth in zip(rows, following, strict=False) if depth > row.depth or not _is_left_out(row)]


def _is_left_out(row: FlatTrace) -> bool:
    return (
        row.depth > 0
        and row.type == "call"
        and row.to is not None
        and _PRECOMPILED.fullmatch(row.to) is not None
        and _ZERO.fullmatch(row.value or "0x0") is not None
    )


def name_error(text: str | None) -> str | None:
    """One name for what nodes call differently; other words stay as they are, in bounds."""
    if not text:
        return None
    words = text[: 4 * _MOST_ERROR].strip().lower()
    for name, pattern in _ERRORS:
        if pattern.fullmatch(words):
            return name
    return "".join(letter if letter.isprintable() else " " for letter in words)[:_MOST_ERROR]


def allow_deep_calls() -> None:
    """Calls are nested up to 1,024 deep, and the decoder of JSON counts each level as several of Python's."""
    if sys.getrecursionlimit() < _DEEP:
        sys.setrecursionlimit(_DEEP)
