"""Every problem has its code, its place and its path: the smallest document for each.

`problems.txt` has the documents. A head line says code and path, and § in the document marks the place.
"""

import pytest
from tools.docs import ROOT

from tests.dag.support import GOOD, HEAD, TICK, WORK, marked, problems_of
from tracelake.dag.problems import CODES, MAX_PROBLEMS


def _cases() -> list[tuple[str, str, str]]:
    cases = []
    for block in (ROOT / "tests/dag/problems.txt").read_text(encoding="utf-8").split("=== ")[1:]:
        head, _, text = block.partition("\n")
        code, _, path = head.partition(" ")
        cases.append((code, path, text))
    return cases


CASES = [
    *_cases(),
    ("text_invalid", "", "name: d # §\x07\n"),
    ("text_invalid", "", "name: d # §\u2028\n"),
    ("text_invalid", "", "name: d # §\ufeff\n"),
    ("text_invalid", "", "name: d\r\njobs: §\r"),
    ("out_of_range", "defaults.max_attempts", GOOD + "defaults: {max_attempts: §" + "9" * 5000 + "}\n"),
]
TOLD_ELSEWHERE = {"document_too_large", "too_many_problems", "yaml_too_many_values"}
"""By the tests below."""
TOLD_BY_THE_DEPLOY = {"dataset_name_taken", "table_change", "webhook_path_taken"}


@pytest.mark.parametrize(
    ("code", "path", "text"), CASES, ids=[f"{index}-{case[0]}" for index, case in enumerate(CASES)]
)
def test_one_mistake_is_one_problem_in_its_place(code: str, path: str, text: str) -> None:
    plain, places = marked(text)
    found = [(problem.code, (problem.line, problem.column), problem.path) for problem in problems_of(plain)]
    assert found == [(code, places[0], path)]


def test_every_code_is_told_by_some_document() -> None:
    assert {code for code, _, _ in CASES} | TOLD_ELSEWHERE | TOLD_BY_THE_DEPLOY == set(CODES)


def test_codes_are_sorted() -> None:
    assert list(CODES) == sorted(CODES)


def test_the_document_without_a_mistake_is_good() -> None:
    assert problems_of(GOOD) == []


def test_a_text_that_is_too_large() -> None:
    text = GOOD.encode() + b"#" * 2**20
    (problem,) = problems_of(text)
    assert (problem.code, problem.line, problem.column, problem.path) == ("document_too_large", 1, 1, "")
    assert problems_of(GOOD.encode() + b"#" * (2**20 - len(GOOD.encode()))) == []


def test_bytes_that_are_not_text() -> None:
    (problem,) = problems_of(b"name: d\njobs: \xff\n")
    assert (problem.code, problem.line, problem.column) == ("text_invalid", 2, 7)


SYNTAX_HINTS = [
    ("name: d\ndescription: a: b\n", "Quote a text that has a colon in it."),
    ("name: d\njobs:\n- name: a\n source: {kind: manual}\n", "Look at indentation"),
    ("name: d\njobs:\n  - name: a\n   source: {kind: manual}\n", "Look at indentation"),
    ("name: d\njobs: [{name: a: b}]\n", "Quote a text that has a colon in it."),
    ("name: d\njobs:\n\t- name: a\n", "Indent with spaces"),
    ("name: @d\n", "Quote a value that begins with one of"),
]


@pytest.mark.parametrize(("text", "hint"), SYNTAX_HINTS)
def test_the_hint_of_broken_yaml_fits_the_mistake(text: str, hint: str) -> None:
    (problem,) = problems_of(text)
    assert problem.code == "yaml_syntax"
    assert (problem.suggestion or "").startswith(hint)


def test_a_bomb_of_aliases() -> None:
    text = GOOD + "a: &x0 [1]\n" + "".join(f"b{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 20))
    (problem,) = problems_of(text)
    assert (problem.code, problem.line) == ("yaml_too_many_values", 10)


def test_more_problems_than_anyone_reads() -> None:
    found = problems_of(HEAD + "- {}\n" * 900)
    assert len(found) == MAX_PROBLEMS + 1
    assert "too_many_problems" in {problem.code for problem in found}


FIELDS = ", ".join(f"a{number}: 1" for number in range(65))
MANY = [
    ("jobs", HEAD + "- {name: t, activation: source, source: {kind: manual}}\n" * 1001),
    ("publish", GOOD + "publish:\n" + "".join(f"  d{number}: {{}}\n" for number in range(1001))),
    ("jobs[1].inputs", GOOD.replace("[{from: {job: tick}}]", "[" + "{from: {job: tick}}, " * 65 + "]")),
    ("jobs[1].inputs[0].where", GOOD.replace("tick}}]", "tick}, where: {" + FIELDS + "}}]")),
    ("jobs[1].inputs[0].where.a", GOOD.replace("tick}}]", f"tick}}, where: {{a: {list(range(1001))}}}}}]")),
]


@pytest.mark.parametrize(("path", "text"), MANY, ids=[path for path, _ in MANY])
def test_more_of_something_than_there_may_be(path: str, text: str) -> None:
    assert [(problem.code, problem.path) for problem in problems_of(text)] == [("out_of_range", path)]


def test_each_circle_is_told_once_and_what_reads_it_is_not_blamed() -> None:
    edges = {"a": "b", "b": "a", "reads_a": "a", "c": "c", "d": "e", "e": "f", "f": "d", "fine": "tick"}
    text = HEAD + TICK + "".join(WORK.replace("work", name).replace("tick", of) for name, of in edges.items())
    told = [problem.message for problem in problems_of(text) if problem.code == "cycle"]
    assert len(told) == len(problems_of(text)) == 3
    assert ["`a` -> `b` -> `a`" in told[0], "`c` -> `c`" in told[1], "`d` -> `f` -> `e` -> `d`" in told[2]] == [
        True
    ] * 3
