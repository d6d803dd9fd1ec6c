"""Regular expressions and LIKE patterns, and how often Java may have to try again to match one.

Java's engine backtracks, cannot be interrupted, and recurses for some loops until its stack overflows, which ends
Java. So only a subset passes: characters, classes, groups, alternatives, anchors and quantifiers; no references to
groups, no lookaround. A quantifier may follow a group only if the group has one length and never a choice between two
alternatives that begin alike. That leaves loops over single characters, one after another, whose cost is a power of
the length of the text: `\\d+x` takes one way per start, `.*a.*b` as many as there are places for the `a`. The power is
counted (`degree`) and limited; see `_Ambiguity`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tracelake.catalogue.sql.literals.errors import LiteralError
from tracelake.catalogue.sql.literals.pattern_parser import (
    MAX_LENGTH,
    MAX_REPEATS,
    Anchor,
    Characters,
    PatternChoice,
    PatternNode,
    Repeat,
    parse_pattern,
)

MAX_DEGREE = 3
"""The highest power of the length of a text that matching may cost."""
MAX_WAYS = 1_000
"""In how many ways optional parts of bounded length may share the same text."""
MAX_LIKE_GAPS = 3
"""`%` of a LIKE that have something behind them."""


def check_pattern(text: str) -> int:
    """A regular expression of Java that matches in bounded time: the power of the length of a text that it costs."""
    pattern = parse_pattern(text)
    if (size := _size(pattern)) > MAX_REPEATS:
        raise LiteralError(f"the pattern, written out, has {size:,} atoms; {MAX_REPEATS:,} is the limit")
    degree, ways = pattern_cost(pattern)
    if degree > MAX_DEGREE or ways > MAX_WAYS:
        raise LiteralError(
            "parts of the pattern can share the same characters in too many ways; "
            "write what stands between two parts, like `[^,]*,` instead of `.*,`, and begin with `^`"
        )
    return degree


def pattern_cost(pattern: PatternChoice) -> tuple[int, int]:
    """The power of the length of a text that matching may cost, and what it is multiplied by."""
    degree = ways = 0
    for branch in pattern.branches:
        _check_loops(branch)
        ambiguity = _Ambiguity()
        degree = max(degree, ambiguity.measure(branch))
        ways += ambiguity.ways - 1
    return degree, ways + 1


def check_like(text: str, escape: str = "\\") -> int:
    """A LIKE pattern, and the power that it costs. Spark matches it as a regular expression, `%` as `.*`."""
    if len(text) > MAX_LENGTH:
        raise LiteralError(f"a pattern has at most {MAX_LENGTH:,} characters")
    index = 0
    kinds: list[str] = []
    while index < len(text):
        if text[index] == escape:
            index += 1
            kinds.append("x")
        elif not (text[index] == "%" and kinds[-1:] == ["%"]):
            kinds.append("%" if text[index] == "%" else "x")
        index += 1
    gaps = kinds[:-1].count("%")
    if gaps > MAX_LIKE_GAPS:
        raise LiteralError(f"a LIKE has at most {MAX_LIKE_GAPS} `%` before other characters; use several with AND")
    return gaps


def _size(node: PatternNode) -> int:
    if isinstance(node, PatternChoice):
        return sum(1 + sum(_size(item) for item in branch) for branch in node.branches)
    if isinstance(node, Repeat):
        return _size(node.item) * max(1, node.low, node.high or 0)
    return 1


def _check_loops(sequence: tuple[PatternNode, ...]) -> None:
    """What is repeated has one length, and begins in one way: no loop in a loop, no choice that leads back."""
    for node in sequence:
        if isinstance(node, PatternChoice):
            for branch in node.branches:
                _check_loops(branch)
        elif isinstance(node, Repeat) and isinstance(node.item, PatternChoice):
            if node.low == 0 and node.high == 1:
                for branch in node.item.branches:
                    _check_loops(branch)
            else:
                _check_repeated_group(node.item, node.high)


def _check_repeated_group(group: PatternChoice, high: int | None) -> None:
    if len(group.branches) > 1 and high is None:
        raise LiteralError("a group with `|` is repeated without end: Java's stack is not; write `[ab]*` or a number")
    if any(_length(branch) is None for branch in group.branches):
        raise LiteralError("a group that is repeated has a quantifier in it: this may take exponential time")
    firsts = [_first(branch) for branch in group.branches]
    if any(bits == 0 for bits in firsts):
        raise LiteralError("a group that is repeated may match nothing")
    if any(one & other for index, one in enumerate(firsts) for other in firsts[:index]):
        raise LiteralError("two alternatives of a group that is repeated begin alike: this may take exponential time")


def _length(sequence: tuple[PatternNode, ...]) -> int | None:
    """How many characters it matches; None: it depends."""
    total = 0
    for node in sequence:
        if isinstance(node, Characters):
            total += 1
        elif isinstance(node, Repeat):
            inner = _length((node.item,))
            if node.high != node.low or inner is None:
                return None
            total += inner * node.low
        elif isinstance(node, PatternChoice):
            if len(node.branches) != 1 or (inner := _length(node.branches[0])) is None:
                return None
            total += inner
    return total


def _first(sequence: tuple[PatternNode, ...]) -> int:
    for node in sequence:
        if isinstance(node, Characters):
            return node.bits
        if isinstance(node, Repeat):
            return _first((node.item,))
        if isinstance(node, PatternChoice):
            return _first(node.branches[0])
    return 0


@dataclass(frozen=True, slots=True)
class _PatternRun:
    """Characters of a set in a row."""

    bits: int
    low: int
    high: int | None

    @property
    def varies(self) -> bool:
        return self.low != self.high


class _Ambiguity:
    """Counts in how many ways the runs of a sequence can share a text.

    A run that varies in length can leave characters to those behind it, up to a barrier: a character that must be
    there and that none of them can match. Every unbounded run between two barriers but one adds a power of the length
    of the text, and every bounded one multiplies. The last run of all has to stop at no barrier, so it adds one more,
    unless nothing behind it can fail. A pattern that does not begin with `^` is tried from every character.
    """

    def __init__(self) -> None:
        self.ways = 1

    def measure(self, sequence: tuple[PatternNode, ...]) -> int:
        anchored = bool(sequence) and sequence[0] == Anchor("^")
        ends_open = not sequence or not isinstance(sequence[-1], Anchor)
        runs = list(_runs(sequence))
        while ends_open and runs and runs[-1].varies:
            # Nothing behind it can fail, so it is never tried again.
            last = runs.pop()
            runs += [_PatternRun(last.bits, last.low, last.low)] if last.low else []
        unbounded = any(run.high is None for run in runs)
        degree = 0 if anchored or not unbounded else 1
        chain: list[_PatternRun] = []
        union = 0
        for run in runs:
            if run.low and not run.bits & union:
                degree += self._close(chain, barrier=True)
                chain, union = [], 0
            if run.varies:
                chain.append(run)
                union |= run.bits
        return degree + self._close(chain, barrier=False)

    def _close(self, chain: list[_PatternRun], *, barrier: bool) -> int:
        unbounded = sum(run.high is None for run in chain)
        if not (barrier and len(chain) == 1):
            for run in chain:
                if run.high is not None:
                    self.ways = min(self.ways * (run.high - run.low + 1), MAX_WAYS + 1)
        return max(0, unbounded - 1) if barrier else unbounded


def _runs(sequence: tuple[PatternNode, ...]) -> Iterator[_PatternRun]:
    for node in sequence:
        if isinstance(node, Characters):
            yield _PatternRun(node.bits, 1, 1)
        elif isinstance(node, Repeat) and isinstance(node.item, Characters):
            yield _PatternRun(node.item.bits, node.low, node.high)
        elif isinstance(node, Repeat):
            assert isinstance(node.item, PatternChoice)
            if (node.low, node.high) == (0, 1):
                yield from _group_runs(node.item, optional=True)
            else:
                yield _repeated_run(node.item, node.low, node.high)
        elif isinstance(node, PatternChoice):
            yield from _group_runs(node, optional=False)


def _repeated_run(group: PatternChoice, low: int, high: int | None) -> _PatternRun:
    """Of a group whose alternatives have one length each."""
    lengths = [_length(branch) or 0 for branch in group.branches]
    return _PatternRun(_all_bits(group.branches), min(lengths) * low, None if high is None else max(lengths) * high)


def _group_runs(group: PatternChoice, *, optional: bool) -> Iterator[_PatternRun]:
    if len(group.branches) == 1 and not optional:
        yield from _runs(group.branches[0])
        return
    branches = [list(_runs(branch)) for branch in group.branches]
    firsts = [_first(branch) for branch in group.branches]
    is_clear = all(firsts) and not any(one & two for index, one in enumerate(firsts) for two in firsts[:index])
    shortest = 0 if optional else min(sum(run.low for run in branch) for branch in branches)
    choices = (0 if is_clear else len(branches) - 1) + optional
    yield _PatternRun(_all_bits(group.branches), shortest, shortest + choices)
    loops = [run for branch in branches for run in branch if run.varies]
    yield from (_PatternRun(run.bits, 0, None if run.high is None else run.high - run.low) for run in loops)
    if loops:
        # What is behind a loop in its alternative can fail, even where nothing is behind the group.
        yield _PatternRun(0, 0, 0)


def _all_bits(branches: Iterable[tuple[PatternNode, ...]]) -> int:
    bits = 0
    for branch in branches:
        for run in _runs(branch):
            bits |= run.bits
    return bits
