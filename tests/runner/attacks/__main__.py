"""Writes README.md: the catalogue of attacks as tables."""

from pathlib import Path

from tests.runner.attacks import ATTACKS
from tests.runner.attacks.catalogue import LANGUAGES, Attack, Place

README = Path(__file__).with_name("README.md")
_HEAD = """# Attacks on the sandbox of users' functions

Written by `python -m tests.runner.attacks` from the catalogue in this directory; a test compares both. Each attack is
made from inside of a sandbox by hostile functions in Python (`attack.py`), Node (`attack.mjs`) and Rust (`attack.rs`),
by `tests/runner/test_attacks.py`, as root and as a plain user. An attack is contained if it ends as the last column
says: by an error of the kernel, a status of HTTP (`closed`: a connection without a reply), a result of the program
(`exit`: it failed; `ok`: it ran, and nothing outside was affected), or an ending of the run such as `memory`.
"""


def render() -> str:
    counts = ", ".join(f"{language} {sum(language in item.languages for item in ATTACKS)}" for language in LANGUAGES)
    parts = [_HEAD, f"{len(ATTACKS)} attacks: {counts}."]
    for place in Place:
        rows = [_row(attack) for attack in ATTACKS if attack.place is place]
        parts += ["", f"## {place.value}", "", "| attack | tries | languages | contained |", "|---|---|---|---|", *rows]
    return "\n".join(parts) + "\n"


def _row(attack: Attack) -> str:
    name = attack.name.removeprefix(f"{attack.place.value}: ")
    languages = "all" if attack.languages == LANGUAGES else f"{', '.join(attack.languages)} ({attack.unsuitable})"
    cells = (name, attack.tries, languages, ", ".join(sorted(attack.contained)))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    README.write_text(render())
