"""Batches as hypothesis makes them up: good, bad, with keys that meet, and artifacts that are not what they were."""

import json
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Literal, TypeAlias

from hypothesis import strategies as st

_TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
GOOD = {
    "flag": st.booleans(),
    "small": st.integers(-(2**15), 2**15 - 1),
    "large": st.integers(-(2**63), 2**63 - 1),
    "signed": st.integers(-(2**255), 2**255 - 1) | st.integers(-(2**255), 2**255 - 1).map(str),
    "unsigned": st.integers(0, 2**256 - 1) | st.integers(0, 2**256 - 1).map(str),
    "ratio": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**20), 10**20),
    "amount": st.decimals(-(10**14) + 1, 10**14 - 1, places=6).map(str) | st.integers(-(10**13), 10**13),
    "class": st.sampled_from(["low", "high"]),
    "data": st.binary(max_size=32).map(lambda data: "0x" + data.hex()),
    "at": st.datetimes(timezones=st.just(UTC)).map(lambda time: time.isoformat().replace("+00:00", "Z")),
    "day": st.dates().map(str),
    "more": st.dictionaries(_TEXT, _JSON, max_size=3),
}
"""Columns of `support.EVERY` that may be null."""

_ROW = st.fixed_dictionaries(
    {"key": st.sampled_from("abc"), "number": st.integers(0, 2)},
    optional={name: st.none() | values for name, values in GOOD.items()},
)
_WRONG: dict[str, st.SearchStrategy[Any]] = {
    "key": st.none() | st.integers() | st.just("x" * 101) | st.just("a\x00"),
    "number": st.none() | st.integers(2**31) | st.floats() | st.text(max_size=3),
    "flag": st.integers() | st.text(max_size=3),
    "small": st.integers(2**15) | st.floats(),
    "large": st.integers(2**63) | st.text(max_size=3),
    "signed": st.integers(2**255) | st.floats() | st.text(max_size=9),
    "unsigned": st.integers(max_value=-1) | st.integers(2**256) | st.just("007"),
    "ratio": st.text(max_size=3) | st.booleans(),
    "amount": st.decimals(places=9).map(str) | st.just("1e99999999") | st.text(max_size=5),
    "class": st.text(max_size=5).filter(lambda text: text not in ("low", "high")),
    "data": st.text(max_size=5) | st.just("0x" + "00" * 33) | st.just("0x0"),
    "at": st.datetimes().map(lambda time: time.isoformat()) | st.just("0001-01-01T00:00:00+10:00") | st.integers(),
    "day": st.text(max_size=10) | st.just("2026-02-30"),
    "more": st.lists(_JSON, max_size=2) | _TEXT | st.just({"\x00": 1}),
    "other": _JSON,
    "org_id": st.uuids().map(str),
}
_LINES = st.binary(max_size=30).filter(lambda data: b"\n" not in data) | st.sampled_from(
    [b"", b"{", b'{"key": "a"}', b'{"key": "\xff", "number": 1}', b'{"key": "a", "number": NaN}', b"[]", b"[" * 3000]
)


Becomes: TypeAlias = Literal["kept", "changed", "truncated", "gone"]
_SPOILT: st.SearchStrategy[Becomes] = st.sampled_from(("changed", "truncated", "gone"))


@dataclass(frozen=True)
class RandomBatch:
    data: bytes
    record_count: int | None
    becomes: Becomes
    """What is found under its address in the end."""


@st.composite
def random_batches(draw: st.DrawFn) -> RandomBatch:
    rows = draw(st.lists(_ROW, max_size=6))
    lines = [json.dumps(row).encode() for row in rows]
    kind = draw(st.sampled_from(["good", "good", "good", "value", "line", "count", "artifact"]))
    if kind == "value":
        name = draw(st.sampled_from(sorted(_WRONG)))
        bad = draw(_ROW) | {name: draw(_WRONG[name])}
        lines.insert(draw(st.integers(0, len(lines))), json.dumps(bad).encode())
    elif kind == "line":
        lines.insert(draw(st.integers(0, len(lines))), draw(_LINES))
    count = draw(st.none() | st.just(len(lines))) if kind != "count" else draw(st.integers(0, 8))
    data = b"".join(line + b"\n" for line in lines)
    becomes = draw(_SPOILT) if kind == "artifact" else "kept"
    return RandomBatch(data[:-1] if draw(st.booleans()) else data, count, becomes)
