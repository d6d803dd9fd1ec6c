"""`trace logs PART`: the log file of a part of the stack, on the machine of the stack.

Our own parts write a JSON document per line, which is shown as a sentence; databases and the object store write text.
"""

import json
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from tracelake.cli.follow import note
from tracelake.cli.listing import whole_line
from tracelake.cli.log_lines import LEVEL_STYLES
from tracelake.cli.names import suggestion
from tracelake.cli.session import Session
from tracelake.cli.text import clean
from tracelake.client.stack import default_home
from tracelake.settings.home import Home
from tracelake.stack.log_tail import LogTail, list_logs, read_last

DEFAULT_LINES = 100
_LOOK_SECONDS = 0.5
_OTHER_NAMES = {
    "query-service": "query",
    "state": "postgres-state",
    "data": "postgres-data",
    "objects": "object-store",
    "sink": "worker",
    "worker-1": "worker",
}
"""What people call a part that has no log of its own name."""
_FIXED = ("time", "level", "process", "logger", "message", "error")


def show_part(session: Session, name: str, lines: int | None, *, following: bool) -> None:
    path = find_log(session, name)
    tail = LogTail(path)
    _show(session, read_last(path, lines or DEFAULT_LINES))
    if not following:
        return
    if not session.as_json:
        note("Following; Ctrl-C ends it.")
    try:
        follow_part(tail, lambda new: _show(session, new))
    except KeyboardInterrupt:
        return


def follow_part(tail: LogTail, show: Callable[[list[str]], None], wait: Callable[[float], None] = time.sleep) -> None:
    """Until `wait` raises."""
    while True:
        wait(_LOOK_SECONDS)
        show(tail.read())


def find_log(session: Session, name: str) -> Path:
    """The log file of a part. Raises UsageError with the names that exist."""
    home = Home(session.home or default_home())
    if not home.logs.is_dir():
        raise click.UsageError(
            f"The log of a part is a file on the machine of the stack, and {home.logs} does not exist here: run"
            f" `trace logs {clean(name)}` there, or give its --home. From here, `trace logs TASK` and"
            " `trace logs DAG/JOB` show the logs of tasks."
        )
    names = list_logs(home.logs)
    for candidate in (name, _OTHER_NAMES.get(name)):
        if candidate in names:
            return home.log_file(candidate)
    if name in ("worker", "sink"):
        workers = [other for other in names if other.startswith("worker-")]
        if workers:
            raise click.UsageError(f"There are several workers: name one of {', '.join(workers)}.")
    raise click.UsageError(
        f"There is no part `{clean(name)}`.{suggestion(name, [*names, *_OTHER_NAMES])} Parts with a log:"
        f" {', '.join(map(clean, names)) or 'none yet'}. A task is named by its UUID, a job by DAG/JOB."
    )


def _show(session: Session, lines: Iterable[str]) -> None:
    for line in lines:
        document = _parse(line)
        if session.as_json:
            session.json(document if document is not None else {"message": line})
        else:
            session.show(whole_line(Text(clean(line)) if document is None else _sentence(document)))


def _parse(line: str) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and "message" in document else None


def _sentence(document: dict[str, Any]) -> Text:
    level = str(document.get("level", ""))
    others = " ".join(f"{name}={value}" for name, value in document.items() if name not in _FIXED)
    text = Text.assemble(
        (_clock(document.get("time")), "dim"),
        " ",
        (f"{clean(level):<7}", LEVEL_STYLES.get(level, "")),
        " ",
        clean(str(document["message"])),
        (f" {clean(others)}" if others else "", "dim"),
    )
    for line in str(document.get("error") or "").splitlines():
        text.append(f"\n    {clean(line)}", style="dim")
    return text


def _clock(value: Any) -> str:
    try:
        return f"{datetime.fromisoformat(str(value)):%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return clean(str(value or ""))
