"""Phrases that people did not understand when they first read them, and what replaced them. None comes back."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPLACED = {
    "failed for good": "failed (no retries left)",
    "fails for good": "final failure",
    "failure for good": "final failure",
    "fail the task for good": "fail the task without a retry",
    "fails the task for good": "fails the task without a retry",
    "fails it for good": "fails it without a retry",
    "rejected for good": "rejected",
    "for good, and not skipped": "no retries left, and not skipped",
    "does not count yet": "is not active yet",
    "Its version does not count": "Version 3 is not active",
    "Nothing is open any more": "All 49 tasks finished, none failed",
    "Mend what the error names": "Fix the error, then retry",
    "mended": "fixed",
    "mends": "fixes",
    "last said": "last event",
    "records said": "records declared",
    "storage none": "events only",
    "the message says what fits": "the range that is expected",
    "what `x` no longer makes stays": "WARNING: old rows stay",
    "NonRetryableError: ": "the error without its class",
}
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def texts(path: Path) -> Iterator[str]:
    """What a reader may see: all of a page and of an SDK, and the strings of another module, without its docstrings and
    comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py" or path.is_relative_to(ROOT / "src/tracelake/sdk"):
        yield " ".join(text.split())
        return
    code = re.sub(r'"""(?:.|\n)*?"""', "", text)
    yield re.sub(r'"\s+f?"', "", " ".join(STRING.findall(code)))


def pages() -> Iterator[Path]:
    for pattern in (
        "src/tracelake/**/*.py",
        "docs/**/*.md",
        "monitoring/**/*.json",
        "monitoring/**/*.yaml",
        "monitoring/**/*.md",
        "examples/**/*.md",
        "src/tracelake/runner/node_sdk/*",
        "src/tracelake/runner/rust_sdk/*.md",
        "sdk/**/*.md",
    ):
        yield from ROOT.glob(pattern)
    for name in ("README", "ARCHITECTURE", "SECURITY", "CONTRIBUTING"):
        yield ROOT / f"{name}.md"


@pytest.mark.parametrize("phrase", REPLACED)
def test_nobody_reads_it_again(phrase: str) -> None:
    words = re.compile(rf"\b{re.escape(phrase)}", re.IGNORECASE)
    places = [
        path.relative_to(ROOT).as_posix()
        for path in pages()
        if "docs/adr" not in path.as_posix() and any(words.search(text) for text in texts(path))
    ]
    assert not places, f"write {REPLACED[phrase]!r} instead of {phrase!r} in {', '.join(places)}"
