"""Runs the cells of a page one after the other, in a process of its own, and prints what each of them printed.

python -m tests.data_out.page PAGE    (a JSON list on standard output)
"""

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

CELL = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
ADDRESSES = ("https://lake.example:8443", "https://lake.example:8446")
"""Those of the Dispatcher and of the Query Service, as the pages name them."""


def run_cell(language: str, text: str, names: dict[str, Any]) -> str:
    if language == "sh":
        script = f"set -e\n{text}"
        return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(text, "cell", "exec"), names)
    return output.getvalue()


def main(page: str, *addresses: str) -> None:
    text = Path(page).read_text()
    for written, real in zip(ADDRESSES, addresses, strict=True):
        text = text.replace(written, real)
    names: dict[str, Any] = {}
    outputs = [run_cell(language, cell, names) for language, cell, _ in CELL.findall(text)]
    sys.stdout.write(json.dumps(outputs))


if __name__ == "__main__":
    main(*sys.argv[1:])
