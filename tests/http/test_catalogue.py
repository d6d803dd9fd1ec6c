"""The error catalogue is data: sorted, unique, complete, and exactly what the code raises."""

import ast
import inspect
from pathlib import Path

import tracelake
from tracelake.errors import CATALOGUE, ErrorKind, StoreUnavailableError, TraceError
from tracelake.errors import catalogue as source
from tracelake.query.engine.requests import FAILURES

ROOT = Path(tracelake.__file__).parent
STATUSES = {400, 401, 403, 404, 405, 409, 413, 422, 429, 500, 503}


def raised_codes() -> dict[str, set[str]]:
    """Code -> the modules that raise it, from every `TraceError("...")` in the sources."""
    found: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            inherits = name == "__init__" and path in (ROOT / "errors/__init__.py", ROOT / "ports/direct_tables.py")
            refuses = name in ("refuse", "_refuse") and path.is_relative_to(ROOT / "query")
            if name not in ("TraceError", "QueryFailure") and not refuses and not inherits:
                continue
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    found.setdefault(argument.value, set()).add(path.relative_to(ROOT).as_posix())
    return found


def test_codes_are_sorted_and_unique() -> None:
    codes = [kind.code for kind in source._KINDS]
    assert codes == sorted(set(codes))
    assert list(CATALOGUE) == codes


def test_every_kind_is_complete() -> None:
    for kind in CATALOGUE.values():
        assert kind.status in STATUSES, kind
        assert kind.code.isidentifier()
        assert kind.code == kind.code.lower()
        for text in (kind.message, kind.remedy):
            assert text.strip() == text
            assert text.endswith("."), kind
            assert text[0].isupper(), kind
        assert "|" not in kind.message + kind.remedy, "it stands in a table"


def test_only_what_may_be_repeated_is_retryable() -> None:
    assert {kind.code for kind in CATALOGUE.values() if kind.retryable} == {
        "boundary_moved",
        "bundle_inspector_unavailable",
        "document_reader_unavailable",
        "listener_busy",
        "rate_limited",
        "runner_busy",
        "query_gate_unavailable",
        "sandbox_file_missing",
        "sandbox_lost",
        "secrets_unavailable",
        "store_unavailable",
    }
    conflicts = {kind.code for kind in CATALOGUE.values() if kind.status == 409}
    assert conflicts == {"fenced", "deadline_exceeded", "write_fenced"}


def test_the_code_raises_what_is_in_the_catalogue() -> None:
    raised = raised_codes()
    assert set(raised) <= set(CATALOGUE), {code: raised[code] for code in set(raised) - set(CATALOGUE)}
    assert set(CATALOGUE) - set(raised) - FAILURES == set(), "engines name theirs in a list"


def test_every_raise_names_its_code_in_the_open() -> None:
    """A code that is put together at run time could not be found by the test above."""
    # A body that came over the wire becomes its error again; a caller, or a declared parameter, names the code.
    # Processes that check or compute queries name their refusals to the service.
    checking = {"query/gate/processes.py", "query/gate/refusals.py", "query/engine/requests.py"}
    allowed = {"client/errors.py", "client/user.py", "wire/parameters.py"} | checking
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).as_posix() in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "TraceError":
                assert node.args, path
                assert isinstance(node.args[0], ast.Constant), path


def test_the_exception_carries_its_kind() -> None:
    error = TraceError("fenced", attempt=2, status="Running")
    assert (error.code, error.status, error.retryable) == ("fenced", 409, False)
    assert error.details == {"attempt": 2, "status": "Running"}
    assert error.message == CATALOGUE["fenced"].message
    assert TraceError("fenced", "In other words.").message == "In other words."
    away = StoreUnavailableError()
    assert (away.code, away.status, away.retryable) == ("store_unavailable", 503, True)
    assert inspect.signature(ErrorKind).parameters["retryable"].default is False
