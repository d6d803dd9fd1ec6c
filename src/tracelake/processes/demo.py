"""`trace demo`: a few hundred small tasks, while a worker, the Dispatcher and the state database are killed.

It starts a stack of its own with short leases, kills one part after another with SIGKILL, and then asks the tables
what became of the work. It reads the state database for its picture; everything it does goes through the API.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tracelake.client.internal import InternalClient
from tracelake.client.stack import Stack
from tracelake.db.transaction import AWAY
from tracelake.model.ids import new_id
from tracelake.processes.home import Home
from tracelake.processes.machine import wrap
from tracelake.processes.status import read_parts
from tracelake.wire.platform import DatasetSpec, JobRequest, Limits, TaskSpec, TasksRequest

_SETTINGS = {
    "lease_seconds": "3",
    "heartbeat_seconds": "1",
    "retry_min_seconds": "0.5",
    "retry_max_seconds": "2",
    "queue_visibility_seconds": "5",
    "reconcile_seconds": "2",
    "reconcile_grace_seconds": "5",
    "worker_slots": "8",
}
_PATIENCE_SECONDS = 180.0
_FLAKY_SHARE = 10  # one task in so many fails its first attempt by itself

# Which part dies once how much of the work is done.
_KILLS = (("worker", 0.15), ("dispatcher", 0.40), ("postgres-state", 0.65))

_PICTURE = """
    SELECT count(*) AS tasks, count(*) FILTER (WHERE status = 'Completed') AS completed,
           count(*) FILTER (WHERE status = 'Running') AS running, count(*) FILTER (WHERE status = 'Queued') AS queued,
           count(*) FILTER (WHERE status = 'Failed') AS failed, coalesce(sum(attempt), 0) AS attempts
    FROM tasks"""
_BY_OUTCOME = "SELECT outcome, count(*) AS attempts FROM task_attempts GROUP BY outcome"


class Picture(msgspec.Struct, frozen=True):
    tasks: int
    completed: int
    running: int
    queued: int
    failed: int
    attempts: int


@dataclass
class Kill:
    part: str
    at: float
    completed: int
    recovered: float | None = None

    def __str__(self) -> str:
        back = "" if self.recovered is None else f"; work went on after {self.recovered:.1f} s"
        return f"killed {self.part}{back}"


@dataclass
class Story:
    """What happened, for the closing table."""

    kills: list[Kill] = field(default_factory=list)
    seconds: float = 0.0
    picture: Picture | None = None
    replaced: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Every task completed, and none of its other attempts was taken as a result too."""
        everything = self.picture is not None and self.picture.completed == self.picture.tasks
        return everything and "Completed" not in self.replaced


class DemoError(Exception):
    """The demo could not go on; the message says why."""


@click.command()
@click.option("--tasks", type=click.IntRange(20, 20_000), default=300, show_default=True, help="How many tasks to run.")
@click.option("--keep", is_flag=True, help="Keep the demo's home directory and say where it is.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one line of JSON.")
def command(tasks: int, keep: bool, as_json: bool) -> None:
    """Run small tasks on a stack of its own while parts of it are killed, and show what happened.

    Nothing outside a temporary directory is touched. Exit status 0 means: every task was completed exactly once.
    """
    console = Console(stderr=as_json)
    scratch = Path(tempfile.mkdtemp(prefix="trace-demo-"))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        story = _run(scratch / "home", tasks, console)
    except DemoError as error:
        console.print(f"[red]The demo failed:[/red] {error}")
        keep = True
        click.get_current_context().exit(1)
    finally:
        if keep:
            console.print(f"The demo's home is kept: {scratch / 'home'}", highlight=False)
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    if as_json:
        click.echo(
            msgspec.json.encode({"ok": story.good, "seconds": round(story.seconds, 1), "picture": story.picture})
        )
    else:
        _tell(story, console)
    click.get_current_context().exit(0 if story.good else 1)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _run(home: Path, tasks: int, console: Console) -> Story:
    console.print("Starting a stack: two Postgres clusters, a Dispatcher, two workers ...")
    started = time.monotonic()
    stack = _Stack(home)
    try:
        info = stack.start()
        console.print(f"Ready after {time.monotonic() - started:.1f} s. Leases last 3 s here, so that you can watch.")
        return asyncio.run(_work(Home(home), info, tasks, console))
    finally:
        console.print("Stopping everything ...")
        stack.stop()


class _Stack:
    """`trace up` as a child, exactly as a person would run it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._log = home.with_name("up.log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Stack:
        arguments = [f"--set={name}={value}" for name, value in _SETTINGS.items()]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACE_")}
        self._process = subprocess.Popen(
            # However the demo ends, its stack is told to stop.
            wrap(
                [sys.executable, "-m", "tracelake", "up", f"--home={self._home}", "--workers=2", "--json", *arguments],
                death_signal=signal.SIGTERM,
            ),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=self._log.open("wb"),
            # Ctrl-C is for the demo, which then stops the stack in order.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            reason = self._log.read_text().strip().splitlines()
            raise DemoError(reason[-1] if reason else "the stack did not start")
        return msgspec.json.decode(line, type=Stack)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
            return
        self._process.kill()
        self._process.wait()


async def _work(home: Home, info: Stack, tasks: int, console: Console) -> Story:
    client = info.internal_client()
    try:
        await _create(client, tasks)
        return await _watch(home, tasks, console)
    finally:
        await client.close()


async def _create(client: InternalClient, tasks: int) -> None:
    """Two jobs: steady tasks, and some that fail once by themselves."""
    jobs = {}
    for name, fail_attempts in (("steady", 0), ("flaky", 1)):
        reply = await client.create_job(
            JobRequest(
                org="demo",
                dag="demo",
                name=name,
                runtime="ecs_platform",
                operator="sleep",
                config={"seconds": 0.35, "fail_attempts": fail_attempts},
                outputs=[DatasetSpec(name=f"{name}_results")],
                limits=Limits(max_attempts=20),
            )
        )
        jobs[name] = reply.job_id
    specs = [
        TaskSpec(job_id=jobs["flaky" if number % _FLAKY_SHARE == 0 else "steady"], task_id=new_id())
        for number in range(tasks)
    ]
    for start in range(0, tasks, 500):
        await client.create_tasks(TasksRequest(tasks=specs[start : start + 500]))


async def _watch(home: Home, tasks: int, console: Console) -> Story:
    story = Story()
    begun = time.monotonic()
    with _view(console, tasks) as show:
        while True:
            picture = await _look(home)
            if time.monotonic() - begun > _PATIENCE_SECONDS:
                raise DemoError("not everything was done in time; look at the logs with --keep")
            if picture is None:
                show(None, "the state database is away; the workers go on and retry")
                await asyncio.sleep(0.1)
                continue
            _note_recovery(story, picture)
            _kill_if_due(home, story, picture)
            show(picture, str(story.kills[-1]) if story.kills else "two workers share the tasks")
            if picture.completed == picture.tasks == tasks:
                break
            await asyncio.sleep(0.1)
    story.seconds = time.monotonic() - begun
    story.picture = picture
    story.replaced = await _replaced(home)
    return story


async def _look(home: Home) -> Picture | None:
    try:
        connection = await asyncpg.connect(home.state_dsn_file.read_text().strip(), timeout=2.0)
        try:
            row = await connection.fetchrow(_PICTURE, timeout=2.0)
        finally:
            await connection.close(timeout=2.0)
    except AWAY:
        return None
    assert row is not None
    return Picture(**dict(row))


async def _replaced(home: Home) -> dict[str, int]:
    connection = await asyncpg.connect(home.state_dsn_file.read_text().strip())
    try:
        return {row["outcome"]: row["attempts"] for row in await connection.fetch(_BY_OUTCOME)}
    finally:
        await connection.close()


def _kill_if_due(home: Home, story: Story, picture: Picture) -> None:
    if len(story.kills) == len(_KILLS) or (story.kills and story.kills[-1].recovered is None):
        return
    name, share = _KILLS[len(story.kills)]
    if picture.completed < share * picture.tasks:
        return
    for part in read_parts(home):
        if part.name.startswith(name) and part.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(part.pid, signal.SIGKILL)
                story.kills.append(Kill(part.name, time.monotonic(), picture.completed))
                return


def _note_recovery(story: Story, picture: Picture) -> None:
    """Recovered means: work is being completed again."""
    if story.kills and story.kills[-1].recovered is None and picture.completed > story.kills[-1].completed:
        story.kills[-1].recovered = time.monotonic() - story.kills[-1].at


class _view:  # noqa: N801 - reads as a function at its one use
    """A progress bar on a terminal; elsewhere one line per event."""

    def __init__(self, console: Console, tasks: int) -> None:
        self._console = console
        self._tasks = tasks
        self._said = ""
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> Callable[[Picture | None, str], None]:
        self._progress.start()
        self._bar = self._progress.add_task("", total=self._tasks)
        return self._show

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _show(self, picture: Picture | None, text: str) -> None:
        if picture is not None:
            self._progress.update(self._bar, completed=picture.completed)
        self._progress.update(self._bar, description=text)
        if not self._console.is_terminal and text != self._said:
            done = "" if picture is None else f"{picture.completed:>5}/{self._tasks}  "
            self._console.print(f"  {done}{text}", highlight=False, soft_wrap=True)
        self._said = text


def _tell(story: Story, console: Console) -> None:
    picture = story.picture
    assert picture is not None
    timeouts, failures = story.replaced.get("Timeout", 0), story.replaced.get("Failed", 0)
    table = Table(
        title="What happened", title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False
    )
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_row(f"{picture.tasks}", "tasks created")
    table.add_row(f"{picture.completed}", "completed, each with exactly one accepted result")
    table.add_row(f"{picture.attempts}", "attempts in all")
    table.add_row(f"{failures}", "attempts failed by themselves and were retried")
    table.add_row(f"{timeouts}", "attempts died with their worker; after the lease they were retried")
    for kill in story.kills:
        back = "not seen back" if kill.recovered is None else f"work went on after {kill.recovered:.1f} s"
        table.add_row("1", f"SIGKILL of {kill.part}: {back}")
    table.add_row(f"{story.seconds:.1f} s", "from the first task to the last")
    console.print(table)
    if story.good:
        console.print(
            "[green]Nothing was lost and nothing was done twice.[/green] Next: [bold].venv/bin/trace up[/bold]"
        )
    else:
        console.print("[red]Some tasks did not complete.[/red] Run again with --keep and look at the logs.")
