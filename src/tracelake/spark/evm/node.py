"""One node: sends calls in batches of a size and at a pace that it takes, and keeps what it answers.

A single call is sent as an object, several as an array. A request that fails is an error; what was answered before, or
in the same request, stays in the `CallSet`, so that the next try asks for the rest only. What a node was found to lack
(batches, a method) is tried again later.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tracelake.spark.evm.batching import BatchSize
from tracelake.spark.evm.calls import REVERTED, AnswerDecoder, Call, CallSet, RpcAnswer
from tracelake.spark.evm.endpoints import RpcEndpoint
from tracelake.spark.evm.errors import (
    AbandonedError,
    AnswerError,
    BatchRefusedError,
    HtmlAnswerError,
    IncompleteAnswerError,
    LateBlockError,
    LogRangeError,
    MissingAnswerError,
    NoSuchMethodError,
    QuotaExhaustedError,
    RateLimitedError,
    RefusedError,
    RpcError,
    TooLargeError,
    UnavailableError,
)
from tracelake.spark.evm.http import HttpNode, HttpOptions, NodeReply
from tracelake.spark.evm.log_ranges import LogRangeSize
from tracelake.spark.evm.pace import Pace
from tracelake.spark.evm.refusals import ProviderRefusal, error_of, is_failed_call, refusal_in

_ids = itertools.count(1)
_CALLS_SHARE = 5
"""A batch is at most this part of the calls that a second has, so that one request never takes all of them."""
_MISSING_SECONDS = 600.0
_ANSWER_BYTES = 8 * 1024 * 1024
"""What the answer to one request should have at most, so that memory follows from it and not from the batch size."""
_STEP_SECONDS = 0.5
_STATE_METHODS = frozenset({"eth_call", "eth_getCode", "trace_block", "debug_traceBlockByHash"})
_PRECEDENCE: tuple[type[RpcError], ...] = (
    QuotaExhaustedError,
    RefusedError,
    BatchRefusedError,
    LogRangeError,
    TooLargeError,
    RateLimitedError,
    NoSuchMethodError,
    LateBlockError,
    RpcError,
)
"""Of the errors in one batch, the first of these decides what follows."""


@dataclass(frozen=True, slots=True)
class RpcOptions:
    chain_id: int
    batch_size: int = 20
    """Calls in one HTTP request, at most; fewer while a node finds that too many."""
    requests_per_second: float | None = None
    """Of this pool, for each node; a batch is one request."""
    deadline_seconds: float = 180.0
    """For one operation, without any progress."""
    tries: int = 12
    """Of one operation, without any progress."""
    backoff_seconds: float = 0.5
    longest_backoff_seconds: float = 20.0
    http: HttpOptions = field(default_factory=HttpOptions)
    calls_per_second: float | None = None
    """Of this pool, for each node; a batch is as many as it carries."""


class ProgressDeadline:
    """How long one operation may go on: so many seconds since its last progress.

    After a wrong answer progress does not extend it any more, since it consists of what was read before.
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic, stop: threading.Event | None = None
    ) -> None:
        self.until = clock() + seconds
        self.answer_count = 0
        """Calls, so far."""
        self._seconds = seconds
        self._clock = clock
        self._extends = True
        self._stop = stop

    def progress(self, calls: int) -> None:
        if calls:
            self.answer_count += calls
            if self._extends:
                self.until = self._clock() + self._seconds

    def freeze(self) -> None:
        self._extends = False

    def check(self) -> None:
        if self._stop is not None and self._stop.is_set():
            raise AbandonedError("another part of the chunk failed")

    def pause(self, seconds: float, sleep: Callable[[float], None]) -> None:
        """Sleeps, in steps that are short enough to hear of a stop."""
        while seconds > 0:
            self.check()
            step = seconds if self._stop is None else min(seconds, _STEP_SECONDS)
            sleep(step)
            seconds -= step


class RpcNode:
    """One endpoint and what is known of it. Safe to use from several threads."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        options: RpcOptions,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.label = endpoint.alias
        self.verified = False
        self.refused: RpcError | None = None
        """Why it is not asked any more."""
        self.trouble: RpcError | None = None
        """What it failed with last, while it rests."""
        self.failures = 0
        self.failed_at = float("-inf")
        self.rests_until = float("-inf")
        self.in_use = 0
        self.log_ranges = LogRangeSize(clock)
        self._secrets = endpoint.secrets
        self._http = HttpNode(endpoint, options.http, clock)
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._batches = BatchSize(options.batch_size, clock)
        self._requests = Pace(options.requests_per_second, clock)
        self._calls = Pace(options.calls_per_second, clock)
        self._limited_until = float("-inf")
        self._limits_in_a_row = 0
        self._missing: dict[str, float] = {}
        self._call_bytes: dict[str, float] = {}
        """By method, of the latest answer."""

    @property
    def batch_size(self) -> int:
        rate = self._calls.rate
        size = self._batches.current
        return size if rate is None else min(size, max(1, int(rate / _CALLS_SHARE)))

    def close(self) -> None:
        self._http.close()

    def lacks(self, method: str) -> bool:
        return self._clock() < self._missing.get(method, float("-inf"))

    def mark_missing(self, method: str) -> None:
        """Until it is asked for again, in case it was one backend of several, or the plan has changed."""
        self._missing[method] = self._clock() + _MISSING_SECONDS

    def ask(self, calls: Sequence[Call], decoder: AnswerDecoder, deadline: ProgressDeadline) -> list[Any]:
        """The results in the order of the calls; null is None."""
        call_set = CallSet(calls)
        self.complete(call_set, decoder, deadline)
        return call_set.results

    def complete(self, call_set: CallSet, decoder: AnswerDecoder, deadline: ProgressDeadline) -> None:
        """Asks for all that is open, in as many requests as it takes. After an error the answers so far are there."""
        while call_set.open:
            places = call_set.open[: self._fitting(call_set.calls[call_set.open[0]][0])]
            sent_at = self._wait_for_turn(len(places), deadline)
            answers: dict[int, Any] = {}
            error: RpcError | None
            try:
                outcomes = self._exchange([call_set.calls[place] for place in places], decoder, deadline)
            except RpcError as whole:
                error = whole
            else:
                answers = {
                    place: outcome.result
                    for place, outcome in zip(places, outcomes, strict=True)
                    if isinstance(outcome, RpcAnswer)
                }
                error = _gravest([outcome for outcome in outcomes if isinstance(outcome, RpcError)])
                call_set.close(places, answers)
            deadline.progress(sum(result is not None for result in answers.values()))
            if answers:
                self._limits_in_a_row = 0
                self._requests.answered()
                self._calls.answered(len(answers))
            if error is None:
                self._judge_size(call_set, places, len(answers))
                continue
            error.sent_at = sent_at
            if not self._adapt(error, len(places), len(answers)):
                raise error

    def worked(self) -> None:
        self.failures = 0
        self.trouble = None

    def failed(self, error: RpcError, *, progress: bool = False) -> None:
        """It rests: longer each time, unless it had answered something in between."""
        now = self._clock()
        if progress:
            self.failures = 0
        if error.sent_at is None or error.sent_at >= self.failed_at:  # else it is the same failure, seen by another
            self.failures += 1
        self.failed_at = now
        self.trouble = error
        longest = self._options.longest_backoff_seconds
        pause = min(longest, self._options.backoff_seconds * 2 ** min(20, max(0, self.failures - 1)))
        at_least = error.retry_after or 0.0 if isinstance(error, RateLimitedError) else 0.0
        rest = max(at_least, pause * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads tries
        self.rests_until = max(self.rests_until, now + rest)

    def _fitting(self, method: str) -> int:
        """How many calls of this method one request may carry."""
        call_bytes = self._call_bytes.get(method, 1.0)
        return min(self.batch_size, max(1, int(_ANSWER_BYTES / call_bytes)))

    def _judge_size(self, call_set: CallSet, places: Sequence[int], answer_count: int) -> None:
        if answer_count == len(places):
            self._batches.answered(answer_count)
        elif answer_count:
            self._batches.shrink(len(places), limit=answer_count)
        else:
            raise MissingAnswerError(f"no answer to {call_set.calls[places[0]][0]}", host=self.label)

    def _adapt(self, error: RpcError, count: int, answer_count: int) -> bool:
        """Whether the node can be asked for the rest at once, in another way."""
        match error:
            case BatchRefusedError():
                self._batches.refuse(certain=error.certain)
                return count > 1
            case TooLargeError() if count > 1:
                self._batches.shrink(count, limit=error.limit or answer_count or None)
                return True
            case RateLimitedError():
                self._slow_down(error, count, answer_count)
            case IncompleteAnswerError() if count > 1:
                self._batches.halve(count)
            case LateBlockError():
                pass
            case UnavailableError() if not answer_count:
                self._batches.strike(count)
        return False

    def _slow_down(self, error: RateLimitedError, count: int, answer_count: int) -> None:
        if error.retry_after is not None:
            self._limited_until = max(self._limited_until, self._clock() + error.retry_after)
        if answer_count:
            self._calls.slower(error.sent_at)  # it counts calls
            self._batches.slow(count, answer_count)
            return
        self._requests.slower(error.sent_at)
        if error.sent_at is None or error.sent_at >= self.failed_at:
            self._limits_in_a_row += 1
        if self._limits_in_a_row > 1:  # it had rested, so the batch alone is too much
            self._batches.slow(count, 0)

    def _wait_for_turn(self, count: int, deadline: ProgressDeadline) -> float:
        """When the request is sent."""
        deadline.check()
        now = self._clock()
        if now < self._limited_until:  # it told another thread to wait; meanwhile another node may be asked
            wait = self._limited_until - now
            limited = RateLimitedError(f"it asked to wait for {wait:.1f} s more", host=self.label, retry_after=wait)
            limited.sent_at = float("-inf")
            raise limited
        wait = max(self._requests.wait(), self._calls.wait(count))
        if wait <= 0:
            return now
        if now + wait > deadline.until:
            raise RateLimitedError(
                f"the next request may be sent in {wait:.1f} s, which is later than retry_seconds allows",
                host=self.label,
                retry_after=wait,
            )
        deadline.pause(wait, self._sleep)
        return self._clock()

    def _exchange(
        self, calls: Sequence[Call], decoder: AnswerDecoder, deadline: ProgressDeadline
    ) -> list[RpcAnswer[Any] | RpcError | None]:
        """One request. For each call its answer, an error, or None if there is neither."""
        first = next(_ids) * 1_000_000
        bodies = [
            {"jsonrpc": "2.0", "id": first + place, "method": method, "params": params}
            for place, (method, params) in enumerate(calls)
        ]
        single = len(calls) == 1
        reply = self._http.post(msgspec.json.encode(bodies[0] if single else bodies), until=deadline.until)
        answers = self._decode(reply, decoder, calls)
        self._call_bytes[calls[0][0]] = max(1.0, len(reply.body) / len(calls))
        outcomes: list[RpcAnswer[Any] | RpcError | None] = [None] * len(calls)
        for answer in answers:
            place = _place(answer, first, single)
            if place is None and answer.error is not None and len(answers) == 1:
                raise self._error(reply, calls, answer.error.code, answer.error.message)
            if place is None or not place < len(calls) or outcomes[place] is not None:
                raise AnswerError("an answer to a call that nobody made", host=self.label)
            if answer.error is None:
                outcomes[place] = answer
            elif calls[place][0] == "eth_call" and is_failed_call(answer.error.code, answer.error.message):
                outcomes[place] = RpcAnswer(answer.id, REVERTED)
            else:
                whole = len(answers) == 1  # an error alone, as the answer to a first call, is about the batch as such
                body = answer.error
                outcomes[place] = self._error(reply, calls, body.code, body.message, None if whole else place)
        return outcomes

    def _decode(self, reply: NodeReply, decoder: AnswerDecoder, calls: Sequence[Call]) -> list[RpcAnswer[Any]]:
        single = len(calls) == 1
        problem: Exception | None = None
        if reply.status == 200 or reply.body[:1] in (b"[", b"{"):
            try:
                answers = decoder.decode_single(reply.body) if single else decoder.decode(reply.body, len(calls))
                # Statuses of refusals come with bodies that look like answers without a result.
                if reply.status == 200 or any(answer.id is not None for answer in answers):
                    return answers
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                problem = error
        code, words = refusal_in(reply.body)
        if reply.status != 200 or code is not None or (words and reply.body[:1] == b"{"):
            raise self._error(reply, calls, code, words)
        if not single and reply.body[:1] == b"{":
            raise BatchRefusedError("one answer to a batch of calls", host=self.label)
        if reply.body.lstrip()[:1] == b"<":
            raise HtmlAnswerError(
                "a web page instead of JSON: check the address and the status page of the provider", host=self.label
            )
        if isinstance(problem, msgspec.ValidationError):
            raise AnswerError(f"an answer of another form than JSON-RPC has: {problem}", host=self.label)
        raise UnavailableError("the answer is not JSON", host=self.label)

    def _error(
        self, reply: NodeReply, calls: Sequence[Call], code: int | None, words: str, place: int | None = None
    ) -> RpcError:
        """`place`: of the call that it is about; None: about all of them."""
        whole = place is None and len(calls) > 1
        method = "a batch" if whole else calls[place or 0][0]
        of_logs = calls[0][0] == "eth_getLogs"
        of_state = calls[0][0] in _STATE_METHODS
        refusal = ProviderRefusal(
            reply.status, code, words, reply.retry_after, method, len(calls), whole, of_logs, of_state
        )
        return error_of(refusal, self.label, self._secrets)


def _place(answer: RpcAnswer[Any], first: int, single: bool) -> int | None:
    """Which call it answers. Some servers give ids back as text, and none with an error."""
    answer_id = answer.id
    if isinstance(answer_id, str) and answer_id.isascii() and answer_id.isdigit():
        answer_id = int(answer_id[:30])
    if isinstance(answer_id, float) and answer_id.is_integer():
        answer_id = int(answer_id)
    if isinstance(answer_id, int) and answer_id >= first:
        return answer_id - first
    return 0 if single and answer_id is None and answer.error is not None else None


def _gravest(errors: Sequence[RpcError]) -> RpcError | None:
    for kind in _PRECEDENCE:
        for error in errors:
            if isinstance(error, kind):
                return error
    return None
