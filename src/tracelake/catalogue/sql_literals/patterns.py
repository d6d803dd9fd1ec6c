"""Regular expressions and LIKE patterns, and how often Java may have to try again to match one.

Java's engine backtracks, cannot be interrupted, and recurses for some loops until its stack ends, which ends Java. So
only a subset passes: characters, classes, groups, alternatives, anchors and quantifiers; no references to groups, no
lookaround. A quantifier may stand behind a group only if the group has one length and never a choice between two
alternatives that begin alike. That leaves loops over single characters, one behind another, whose cost is a power of
the length of the text: `\\d+x` takes one way per start, `.*a.*b` as many as there are places for the `a`. The power is
counted (`degree`) and limited; see `_Ambiguity`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tracelake.catalogue.sql_literals.errors import LiteralError

MAX_LENGTH = 1_000
MAX_DEGREE = 3
"""The highest power of the length of a text that matching may cost."""
MAX_WAYS = 1_000
"""In how many ways optional parts of bounded length may share the same text."""
MAX_REPEATS = 1_000
"""Of what a quantifier with a number repeats; and all atoms of a pattern, written out."""
MAX_NESTED_GROUPS = 8
MAX_LIKE_GAPS = 3
"""`%` of a LIKE that have something behind them."""

_UNIVERSE = (1 << 129) - 1
"""Sets of characters are bits: those of ASCII, and one for all others."""
_OTHERS = 1 << 128


def _bits(characters: Iterable[str]) -> int:
    bits = 0
    for character in characters:
        bits |= 1 << ord(character) if character.isascii() else _OTHERS
    return bits


_DIGITS = _bits("0123456789")
_WORD = _DIGITS | _bits("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPACE = _bits(" \t\n\r\x0b\x0c")
_CLASSES = {
    "d": _DIGITS,
    "w": _WORD,
    "s": _SPACE,
    "D": _UNIVERSE & ~_DIGITS,
    "W": _UNIVERSE & ~_WORD,
    "S": _UNIVERSE & ~_SPACE,
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r"}
_DOT = _UNIVERSE & ~_bits("\n\r")
_SPECIAL = frozenset("\\^$.|?*+()[]{}")
_PUNCTUATION = frozenset("!\"#%&',-/:;<=>@_`~ ") | _SPECIAL


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a set."""

    bits: int


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place between characters: `^`, `$`, `\\b` or `\\B`."""

    sign: str


@dataclass(frozen=True, slots=True)
class Repeat:
    item: "PatternNode"
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class PatternChoice:
    """Alternatives, each a sequence. A group is a choice too, of one alternative if it has no `|`."""

    branches: tuple[tuple["PatternNode", ...], ...]


PatternNode = Characters | Anchor | Repeat | PatternChoice


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


def parse_pattern(text: str) -> PatternChoice:
    if len(text) > MAX_LENGTH:
        raise LiteralError(f"a pattern has at most {MAX_LENGTH:,} characters")
    parser = _PatternParser(text)
    choice = parser.read_choice(0)
    parser.expect_end()
    return choice


class _PatternParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._ignores_case = False
        if text.startswith("(?i)"):
            self._place = 4
            self._ignores_case = True

    def expect_end(self) -> None:
        if self._place < len(self._text):
            raise LiteralError("`)` of a pattern closes nothing")

    def read_choice(self, depth: int) -> PatternChoice:
        if depth > MAX_NESTED_GROUPS:
            raise LiteralError(f"a pattern has at most {MAX_NESTED_GROUPS} groups inside each other")
        branches = [self._read_sequence(depth)]
        while self._peek() == "|":
            self._place += 1
            branches.append(self._read_sequence(depth))
        return PatternChoice(tuple(branches))

    def _read_sequence(self, depth: int) -> tuple[PatternNode, ...]:
        items: list[PatternNode] = []
        while self._peek() not in ("", "|", ")"):
            atom = self._read_atom(depth)
            items.append(self._read_quantifier(atom))
        return tuple(items)

    def _read_atom(self, depth: int) -> PatternNode:
        sign = self._take()
        if sign == "(":
            if self._peek() == "?":
                if self._text[self._place : self._place + 2] != "?:":
                    raise LiteralError("of groups with `?`, a pattern may have `(?:...)`, and `(?i)` at its begin")
                self._place += 2
            inner = self.read_choice(depth + 1)
            if self._take() != ")":
                raise LiteralError("`(` of a pattern is not closed")
            return inner
        if sign == "[":
            return Characters(self._read_class())
        if sign == ".":
            return Characters(_DOT)
        if sign in "^$":
            return Anchor(sign)
        if sign == "\\":
            return self._read_escape()
        if sign in "*+?{":
            raise LiteralError("a quantifier stands behind nothing")
        if sign in "]}":
            raise LiteralError(f"write `\\\\{sign}` for a bracket as a character")
        return Characters(self._folded(_bits(sign)))

    def _read_escape(self) -> PatternNode:
        sign = self._take()
        if sign in _CLASSES:
            return Characters(_CLASSES[sign])
        if sign in ("b", "B"):
            return Anchor(sign)
        return Characters(self._folded(self._escaped(sign)))

    def _escaped(self, sign: str) -> int:
        if sign in _CONTROLS:
            return _bits(_CONTROLS[sign])
        if sign not in _PUNCTUATION:
            raise LiteralError("a backslash stands before d, w, s, D, W, S, b, B, t, n, r or a sign; not before others")
        return _bits(sign)

    def _read_class(self) -> int:
        negated = self._peek() == "^"
        self._place += negated
        bits, is_empty = 0, True
        while self._peek() != "]" or is_empty:
            first = self._read_member()
            is_empty = False
            if (
                self._text[self._place : self._place + 1] == "-"
                and self._text[self._place + 1 : self._place + 2] != "]"
            ):
                self._place += 1
                last = self._read_member()
                if not isinstance(first, str) or not isinstance(last, str) or last < first:
                    raise LiteralError("a range in `[...]` goes from a smaller character to a larger one")
                bits |= self._range(first, last)
            else:
                bits |= _bits(first) if isinstance(first, str) else first
        self._place += 1
        bits = self._folded(bits)
        return _UNIVERSE & ~bits | _OTHERS if negated else bits

    def _read_member(self) -> "str | int":
        """A character, or the bits of a class like `\\d`."""
        sign = self._take()
        if sign == "\\":
            sign = self._take()
            if sign in _CLASSES:
                return _CLASSES[sign]
            self._escaped(sign)
            return _CONTROLS.get(sign, sign)
        if sign in "[]&^":
            raise LiteralError(f"write `\\\\{sign}` for `{sign}` inside of `[...]`")
        return sign

    @staticmethod
    def _range(first: str, last: str) -> int:
        if not first.isascii() or not last.isascii():
            return _OTHERS | (_bits(chr(code) for code in range(ord(first), 128)) if first.isascii() else 0)
        return _bits(chr(code) for code in range(ord(first), ord(last) + 1))

    def _folded(self, bits: int) -> int:
        if not self._ignores_case:
            return bits
        letters = [chr(code) for code in range(128) if bits >> code & 1 and chr(code).isalpha()]
        return bits | _bits(letter.swapcase() for letter in letters)

    def _read_quantifier(self, atom: PatternNode) -> PatternNode:
        bounds = self._read_bounds()
        if bounds is None:
            return atom
        if self._peek() in ("?", "+") and self._peek():
            self._place += 1
        if self._peek() in ("*", "+", "?", "{"):
            raise LiteralError("two quantifiers stand behind one part of the pattern")
        if isinstance(atom, Anchor):
            raise LiteralError("a quantifier stands behind an anchor")
        return Repeat(atom, *bounds)

    def _read_bounds(self) -> tuple[int, int | None] | None:
        sign = self._peek()
        if sign in ("*", "+", "?") and sign:
            self._place += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        if sign != "{":
            return None
        end = self._text.find("}", self._place)
        low, comma, high = self._text[self._place + 1 : max(end, self._place + 1)].partition(",")
        if not _is_count(low) or (high and not _is_count(high)):
            raise LiteralError("a quantifier with numbers is like `{3}`, `{3,}` or `{3,5}`, up to 1,000")
        self._place = end + 1
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if most is not None and (most < least or most == 0):
            raise LiteralError("the second number of a quantifier is not smaller than the first, and not 0")
        return least, most

    def _peek(self) -> str:
        return self._text[self._place : self._place + 1]

    def _take(self) -> str:
        if self._place >= len(self._text):
            raise LiteralError("the pattern ends too early")
        self._place += 1
        return self._text[self._place - 1]


def _is_count(text: str) -> bool:
    return 0 < len(text) <= 4 and text.isascii() and text.isdigit() and int(text) <= MAX_REPEATS


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
