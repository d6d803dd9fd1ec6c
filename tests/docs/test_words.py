"""Phrases that people did not understand when they first read them, and what replaced them. None comes back."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPLACED = {
    "failed for good": "failed (no retries left)",
    "does not count yet": "is not active yet",
    "Its version does not count": "Version 3 is not active",
    "Nothing is open any more": "All 49 tasks finished, none failed",
    "Mend what the error names": "Fix the error, then retry",
    "last said": "last event",
    "records said": "records declared",
    "storage none": "events only",
    "the message says what fits": "the range that is expected",
    "what `x` no longer makes stays": "WARNING: old rows stay",
    "NonRetryableError: ": "the error without its class",
}
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def texts(path: Path) -> Iterator[str]:
    """What a reader may see: all of a page, and the strings of a module, without its docstrings and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
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
        "examples/**/*.md",
    ):
        yield from ROOT.glob(pattern)
    yield ROOT / "README.md"


@pytest.mark.parametrize("phrase", REPLACED)
def test_nobody_reads_it_again(phrase: str) -> None:
    words = re.compile(rf"\b{re.escape(phrase)}", re.IGNORECASE)
    places = [
        path.relative_to(ROOT).as_posix()
        for path in pages()
        if "docs/adr" not in path.as_posix() and any(words.search(text) for text in texts(path))
    ]
    assert not places, f"write {REPLACED[phrase]!r} instead of {phrase!r} in {', '.join(places)}"
