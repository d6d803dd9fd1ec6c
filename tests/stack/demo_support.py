"""What tests of `trace demo` share: rows of tasks at given times, a console that writes into a text."""

import io
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from rich.console import Console

from tracelake.demo.screen import DemoScreen
from tracelake.wire.tasks import TaskRow, TaskStatus
from tracelake.wire.units import Unit

START = datetime(2026, 3, 2, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def task(
    job: str, first: int, last: int, status: TaskStatus, claimed: float | None = None, ended: float | None = None
) -> TaskRow:
    return TaskRow(
        task_id=uuid4(),
        dag="token_flows",
        job=job,
        operator="any",
        status=status,
        attempt=1,
        unit=Unit(partition_key=f"{first}-{last}", start=first, end=last),
        created_at=START,
        claimed_at=None if claimed is None else after(claimed),
        finished_at=None if ended is None else after(ended),
    )


def quiet(width: int = 100) -> tuple[DemoScreen, io.StringIO]:
    out = io.StringIO()
    return DemoScreen(Console(file=out, width=width, highlight=False, markup=False)), out
