"""`block_follower`: the head of a chain as an always_on source that writes tables.

The work is done by `follower.follow`; here are its loop, its waits, and what it says about itself. Between two looks it
waits for the time of a block or, with a subscription, for the announcement of one. It ends only when it is told to,
when another attempt has taken over, or with an error that the source shows while it backs off: no node or no store for
`retry_seconds`, or a reorganisation that is deeper than the job allows. The next attempt looks again, so each of these
heals when its cause is gone.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Protocol

from tracelake.catalogue.block_follower import BlockFollowerConfig
from tracelake.catalogue.context import CanceledError, NonRetryableError, OperatorContext, OperatorResult
from tracelake.follower.follow import BlockFollower, FollowOutcome
from tracelake.follower.head_signal import HeadSignal
from tracelake.follower.nodes import ChainNode, NodeHead, WatchedNode
from tracelake.follower.options import FollowOptions, RangeOutputs, RepairPermit
from tracelake.follower.pace import PollPace
from tracelake.follower.progress import ProgressRecord
from tracelake.follower.rpc_nodes import RpcChainNode
from tracelake.follower.store import HotChainStore, HotStoreRefusedError
from tracelake.follower.subscription import HeadSubscription
from tracelake.follower.table_store import TableChainStore
from tracelake.model.log_attribution import carry_key
from tracelake.ports.direct_tables import WHOLE_TABLE
from tracelake.spark.evm import endpoints
from tracelake.spark.evm.chain_rules import ChainRules
from tracelake.spark.evm.errors import NoEndpointError
from tracelake.spark.evm.http import HttpOptions
from tracelake.spark.evm.log_filter import LogSelection
from tracelake.spark.evm.node import RpcOptions
from tracelake.spark.evm.read_options import ReadOptions
from tracelake.wire.head_progress import FollowState
from tracelake.wire.units import TaskOutput

_LOOK_SECONDS = 0.5
"""How often a paused follower looks whether it may go on."""
_DEEP_LOOKS = 3
"""How often a reorganisation that is too deep is seen before the attempt fails: a node may be wrong for a moment."""
_LONGEST_REST_SECONDS = 10.0
_MOST_SUBSCRIPTIONS = 8
"""Each has threads of its own."""
_HTTP = HttpOptions(connect_seconds=5.0, answer_seconds=30.0)
_AWAY: tuple[FollowState, ...] = ("no_node", "node_failed", "store_unavailable")


class FollowerFailedError(Exception):
    """What the source shows while it backs off. It begins with a code for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class ClosableStore(HotChainStore, Protocol):
    def close(self) -> None: ...


OpenStore = Callable[[OperatorContext, Mapping[str, TaskOutput]], ClosableStore]


def open_tables(context: OperatorContext, outputs: Mapping[str, TaskOutput]) -> ClosableStore:
    config = context.config
    assert isinstance(config, BlockFollowerConfig)
    live = config.unit_blocks is not None
    return TableChainStore(lambda: context.open_tables(WHOLE_TABLE), outputs, live=live)


class FollowLoop:
    """Calls the follower for as long as the source runs."""

    def __init__(
        self,
        context: OperatorContext,
        follower: BlockFollower,
        config: BlockFollowerConfig,
        clock: Callable[[], float],
        signal: HeadSignal | None = None,
    ) -> None:
        """`signal`: of subscriptions; None: nodes are polled."""
        self._context = context
        self._follower = follower
        self._retry_seconds = config.retry_seconds
        self._pace = PollPace(config.poll_min_seconds, config.poll_max_seconds)
        self._shortest = config.poll_min_seconds
        self._clock = clock
        self._signal = signal
        self._progress = ProgressRecord()
        self._away_since: float | None = None
        self._failures = 0
        self._deep_looks = 0
        self._state: FollowState | None = None

    def run(self) -> None:
        """Raises CanceledError when it is told to stop."""
        context = self._context
        while not context.cancel.is_set():
            if context.paused.is_set():
                context.cancel.wait(_LOOK_SECONDS)
                continue
            if self._signal is not None:
                self._signal.forget()
            outcome = self._follower.run_once()
            self._tell(outcome)
            self._report(outcome)
            self._judge(outcome)
            if outcome.newest is not None:
                self._pace.observe(outcome.newest)
            if not outcome.at_once:
                self._rest(outcome)
        raise CanceledError

    def _report(self, outcome: FollowOutcome) -> None:
        newest = self._follower.newest
        if self._signal is not None and newest is not None:
            self._signal.store(newest.hash)
        self._context.report(self._progress.observe(outcome, newest, announced=self._is_announced))

    @property
    def _is_announced(self) -> bool:
        return self._signal is not None and self._signal.is_followed

    def _judge(self, outcome: FollowOutcome) -> None:
        """Fails the attempt if its state lasts."""
        self._deep_looks = self._deep_looks + 1 if outcome.state == "reorg_too_deep" else 0
        if self._deep_looks >= _DEEP_LOOKS:
            raise FollowerFailedError("reorg_too_deep", outcome.error)
        if outcome.state not in _AWAY:
            self._away_since, self._failures = None, 0
            return
        now = self._clock()
        self._away_since = now if self._away_since is None else self._away_since
        self._failures += 1
        if now - self._away_since >= self._retry_seconds:
            code = "store_unavailable" if outcome.state == "store_unavailable" else "rpc_unavailable"
            raise FollowerFailedError(code, f"for {self._retry_seconds:g} seconds: {outcome.error}")

    def _rest(self, outcome: FollowOutcome) -> None:
        """However often blocks are announced, nodes are not asked more often than the job allows."""
        seconds = self._wait(outcome)
        if self._signal is None or outcome.state in _AWAY:
            self._context.cancel.wait(seconds)
            return
        least = min(seconds, self._shortest)
        if not self._context.cancel.wait(least):
            self._signal.wait(seconds - least)

    def _wait(self, outcome: FollowOutcome) -> float:
        if outcome.state in _AWAY:
            rest = min(_LONGEST_REST_SECONDS, self._shortest * float(2 ** min(20, self._failures)))
            return max(self._follower.rest, rest) if outcome.state == "no_node" else rest
        return self._pace.next_wait(announced=self._is_announced)

    def _tell(self, outcome: FollowOutcome) -> None:
        """Reorganisations, and changes of state."""
        if outcome.state == "rewritten":
            self._context.progress(
                f"reorganisation of {outcome.depth} blocks: rewrote blocks {outcome.first} to {outcome.last}"
            )
        elif outcome.state != self._state:
            behind = "" if None in (outcome.head, outcome.stored) else f", {_lag(outcome)} blocks behind the head"
            reason = f": {outcome.error}" if outcome.error else ""
            self._context.progress(f"{outcome.state}, block {outcome.stored}{behind}{reason}")
        self._state = outcome.state


def follow_blocks(
    context: OperatorContext, open_store: OpenStore = open_tables, clock: Callable[[], float] = time.monotonic
) -> OperatorResult:
    config = context.config
    assert isinstance(config, BlockFollowerConfig)
    outputs = _outputs(context, config)
    options = FollowOptions(
        start=config.start,
        finality_depth=config.finality_depth_blocks,
        max_reorg_depth=config.reorg_limit,
        batch_blocks=config.batch_blocks,
        unit_blocks=config.unit_blocks,
        repair=_permit(config, clock),
    )
    with ExitStack() as resources:
        nodes = _nodes(context, config, outputs)
        signal = _subscribe(context, config, resources)
        for node in nodes:
            resources.callback(node.close)
        threads = ThreadPoolExecutor(len(nodes), thread_name_prefix="heads")
        resources.callback(threads.shutdown, wait=False, cancel_futures=True)
        ahead = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        resources.callback(ahead.shutdown, wait=False, cancel_futures=True)

        def ask_all(
            ask: Callable[[WatchedNode], NodeHead | None], watched: Sequence[WatchedNode]
        ) -> Iterable[NodeHead | None]:
            return map(ask, watched) if len(watched) == 1 else threads.map(carry_key(ask), watched)

        store = open_store(context, outputs)
        resources.callback(store.close)
        follower = BlockFollower(
            store,
            list[ChainNode](nodes),
            outputs,
            options,
            context.attempt,
            context.emit,
            clock,
            ask_all,
            _range_outputs(context, config),
            ahead,
        )
        try:
            FollowLoop(context, follower, config, clock, signal).run()
        except HotStoreRefusedError as error:
            raise NonRetryableError(f"rows_refused: {error}") from error
    return OperatorResult()


def _permit(config: BlockFollowerConfig, clock: Callable[[], float]) -> RepairPermit | None:
    """An attempt may run for weeks, so the permission ends by a clock of its own."""
    repair = config.repair
    return None if repair is None else RepairPermit(repair.permit_id, clock() + repair.seconds, repair.from_block)


def _range_outputs(context: OperatorContext, config: BlockFollowerConfig) -> RangeOutputs | None:
    """Of live datasets: the two outputs behind those of the tables."""
    if config.unit_blocks is None:
        return None
    by_index = {output.output_index: output for output in context.outputs}
    indexes = (len(config.tables), len(config.tables) + 1)
    if any(index not in by_index for index in indexes):
        raise NonRetryableError("the job has no outputs for ranges of blocks, which live datasets need")
    return RangeOutputs(*(by_index[index] for index in indexes))


def _outputs(context: OperatorContext, config: BlockFollowerConfig) -> dict[str, TaskOutput]:
    """By table. Each must be a table that the task writes itself."""
    by_index = {output.output_index: output for output in context.outputs}
    outputs: dict[str, TaskOutput] = {
        table: by_index[index] for index, table in enumerate(config.tables) if index in by_index
    }
    if "blocks" not in outputs:
        raise NonRetryableError("the job has no output for `blocks`, which the follower compares with the nodes")
    for table, output in outputs.items():
        if output.storage.kind != "postgres":
            raise NonRetryableError(f"the output of `{table}` is not a table: publish it with `storage: postgres`")
    return outputs


def _nodes(
    context: OperatorContext, config: BlockFollowerConfig, tables: Mapping[str, TaskOutput]
) -> list[RpcChainNode]:
    try:
        endpoint_set = endpoints.resolve(context.org, config.rpc)
    except NoEndpointError as error:
        raise NonRetryableError(f"{error.kind}: {error}") from None
    options = RpcOptions(
        chain_id=config.chain_id,
        batch_size=config.batch_size,
        deadline_seconds=_HTTP.answer_seconds,
        requests_per_second=config.max_requests_per_second,
        calls_per_second=config.max_calls_per_second,
        http=_HTTP,
    )
    columns: dict[str, Sequence[str]] = {table: config.optional_columns(table) for table in config.tables}
    criteria = config.filter
    log_filter = None if criteria is None else LogSelection.of(criteria.addresses, criteria.topic_choices())
    reading = ReadOptions.of(columns, ChainRules.of(config.preset), log_filter, verify_roots=config.verify == "roots")
    return [
        RpcChainNode(endpoint, options, tuple(tables), number=number, stop=context.cancel, reading=reading)
        for number, endpoint in enumerate(endpoint_set, 1)
    ]


def _subscribe(context: OperatorContext, config: BlockFollowerConfig, resources: ExitStack) -> HeadSignal | None:
    """Subscribes to the heads of nodes that have a WebSocket; None if there are none."""
    announcers = endpoints.resolve_announcers(context.org, config.rpc)[:_MOST_SUBSCRIPTIONS]
    if not announcers:
        return None
    signal = HeadSignal(context.cancel)
    for number, endpoint in enumerate(announcers, 1):
        subscription = HeadSubscription(endpoint, signal, context.progress, number=number)
        resources.callback(subscription.close)
        subscription.start()
    return signal


def _lag(outcome: FollowOutcome) -> int:
    return max(0, (outcome.head or 0) - (outcome.stored or 0))
