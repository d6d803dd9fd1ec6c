"""The catalogue of attacks on the sandbox of users' functions: what each tries, in which languages, and how it ends.

An attack is a verb of the hostile functions `attack.py`, `attack.mjs` and `attack.rs`, with arguments. `contained` has
the endings that show that it did not succeed. Most attacks try, and report: all of these share one run. An attack
with `alone` gets a run of its own, whose ending counts: `memory` means that the runner ended it for its memory.

`python -m tests.runner.attacks` writes the catalogue as a table, README.md.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

LANGUAGES = ("python", "node", "rust")


class Place(StrEnum):
    FILES = "Files and descriptors"
    PROCESSES = "Other processes, identity and privileges"
    NETWORK = "Network"
    KERNEL = "Kernel"
    RESOURCES = "Resources, hanging and outliving"
    RUNTIME = "The Runtime API"
    PROXY = "The way out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    name: str
    tries: str
    place: Place
    verb: str
    arguments: tuple[str | bytes, ...] = ()
    """Texts may name facts of the test, such as `{secret}`."""
    contained: frozenset[str]
    languages: tuple[str, ...] = LANGUAGES
    unsuitable: str = ""
    """Why it is not in the other languages."""
    alone: bool = False
    seconds: float = 60.0
    """The deadline of a run of its own."""
    machine: str | None = None
    """Numbers of system calls are those of this architecture."""


NO_CALLS = "plain JavaScript makes no system calls by their numbers"


def in_native(attack: Attack, reason: str = NO_CALLS) -> Attack:
    return replace(attack, languages=("python", "rust"), unsuitable=reason)


def of_language(attack: Attack, language: str, reason: str) -> Attack:
    return replace(attack, languages=(language,), unsuitable=reason)
