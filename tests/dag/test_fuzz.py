"""Whatever the bytes are: a Dag, or problems that lie in the text. Nothing else, and soon."""

import random
import time
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.dag.rendering import documents, to_yaml
from tests.dag.support import GOOD, HEAD, SURROUNDINGS
from tests.dag.test_reading import FULL
from tracelake.dag import DagInvalidError, canonical, read_dag
from tracelake.dag.problems import CODES

JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    "x",
    "a: b",
    "é\u2028",
    [],
    {},
    [[]],
    {"a": {"b": []}},
    [None],
    {"": 1},
]


def check(text: bytes) -> None:
    try:
        form = canonical(read_dag(text, SURROUNDINGS))
    except DagInvalidError as error:
        invalid = error
    else:
        assert b"\\u0000" not in form
        form.decode()
        return
    lines = text.decode("utf-8-sig", "replace").replace("\r\n", "\n").split("\n")
    assert str(invalid)
    assert invalid.problems
    for problem in invalid.problems:
        assert problem.code in CODES
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
        assert 0 < len(problem.message) < 2000
        (problem.message + problem.path + problem.suggestion).encode()
    places = [(problem.line, problem.column) for problem in invalid.problems]
    assert places == sorted(places)


@given(text=st.binary())
@example(text=b"\xef\xbb\xbf")
@example(text=b"\xff\xfea\x00")
def test_bytes(text: bytes) -> None:
    check(text)


@given(text=st.text(st.sampled_from("abc:-[]{},&*!|>'\"%@`#? \n\t0~<\\u\r\u2028é")))
@example(text="a: !!binary x")
@example(text="? a\n? b")
@example(text='"\\ud800"')
@example(text="%YAML 1.1\n---\na")
@example(text="&a a: *a")
@example(text="*a : b")
def test_text_that_looks_like_yaml(text: str) -> None:
    check(text.encode())


@given(text=st.text(st.sampled_from("abc:-[]{},&*!'\" \n\t0~<"), max_size=20), cut=st.integers(0, len(FULL)))
def test_noise_inside_of_a_document(text: str, cut: int) -> None:
    check((FULL[:cut] + text + FULL[cut:]).encode())


@given(seed=st.integers(0, 2**32), count=st.integers(1, 5))
def test_lines_that_moved(seed: int, count: int) -> None:
    choose = random.Random(seed)
    lines = FULL.split("\n")
    for _ in range(count):
        at, other = choose.randrange(len(lines)), choose.randrange(len(lines))
        match choose.randrange(4):
            case 0:
                del lines[at]
            case 1:
                lines.insert(other, lines[at])
            case 2:
                lines[at] = lines[other]
            case _:
                lines[at] = " " * choose.randrange(8) + lines[at].lstrip()
    check("\n".join(lines).encode())


def _spots(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key in it."""
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        return [spot for key in keys for spot in [(value, key), *_spots(value[key])]]
    return []


@given(seed=st.integers(0, 2**32), count=st.integers(1, 4), document=st.none() | documents())
def test_values_that_changed(seed: int, count: int, document: Any) -> None:
    choose = random.Random(seed)
    document = document or yaml.safe_load(FULL)
    for _ in range(count):
        spots = _spots(document)
        if not spots:
            break
        container, key = choose.choice(spots)
        source, name = choose.choice(spots)
        match choose.randrange(5):
            case 0:
                del container[key]
            case 1:
                container[key] = choose.choice(JUNK)
            case 2:
                container[key] = (
                    yaml.safe_load(yaml.safe_dump(source[name])) if name in source or isinstance(source, list) else 1
                )
            case 3 if isinstance(container, dict):
                container[choose.choice(["nmae", "from", "config", "1", "é", ""])] = container.pop(key)
            case _:
                container[key] = [container[key], container[key]]
    check(to_yaml(document).encode())


LARGE = 2**20
HOSTILE = {
    "flow list": b"[" + b"a," * (LARGE // 2 - 1),
    "block list": b"- a\n" * (LARGE // 4),
    "many keys": b"".join(b"k%d: 1\n" % number for number in range(90_000)),
    "same key": b"a: 1\n" * (LARGE // 5),
    "deep lists": b"[" * LARGE,
    "deep maps": b"{a: " * (LARGE // 4),
    "deep blocks": b"- " * (LARGE // 2),
    "question marks": b"? " * (LARGE // 2),
    "one scalar": b"name: " + b"x" * (LARGE - 6),
    "one number": b"name: " + b"1" * (LARGE - 6),
    "quotes": b'"' * LARGE,
    "control characters": b"\x01" * LARGE,
    "anchors": b"".join(b"- &a%d x\n" % number for number in range(80_000)),
    "deep aliases": b"a0: &a0 [x]\n" + b"".join(b"a%d: &a%d [*a%d]\n" % (n, n, n - 1) for n in range(1, 1000)),
    "long names, all unknown": HEAD.encode()
    + b"".join(
        b"- {name: %s%04d, activation: reactive, inputs: [{from: {job: %s%05d}}]}\n"
        % (b"x" * 100, n, b"y" + b"x" * 99, n)
        for n in range(1000)
    ),
    "one long circle": HEAD.encode()
    + b"".join(
        b"- {name: j%d, activation: reactive, runtime: lambda, operator: noop, inputs: [{from: {job: j%d}}]}\n"
        % (n, (n + 1) % 1000)
        for n in range(1000)
    ),
    "odd config": GOOD.encode()[:-2] + b", config: {" + b",".join(b"a%d: yes" % n for n in range(40_000)) + b"}}\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_cost_little(text: bytes) -> None:
    started = time.process_time()
    check(text)
    assert time.process_time() - started < 10
