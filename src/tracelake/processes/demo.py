"""`trace demo`: a DAG at work, while a worker, the Dispatcher and the state database are killed.

It starts a stack of its own with short leases, deploys `demo.yaml`, triggers one range of blocks, kills one part after
another with SIGKILL, and then asks the tables what became of the work. It reads the state database for its picture;
everything it does goes through the API.
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
from importlib.resources import files
from pathlib import Path

import asyncpg
import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tracelake.cli.session import show
from tracelake.client.stack import Stack
from tracelake.client.user import UserClient
from tracelake.db.transaction import AWAY
from tracelake.processes.home import Home
from tracelake.processes.machine import wrap
from tracelake.processes.status import read_parts
from tracelake.wire.user import BlockRange, TriggerRequest

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
_UNIT, _WINDOW = 100, 1000  # blocks; as in demo.yaml
_DAG = "demo"

# Which part dies once how much of the work is done.
_KILLS = (("worker", 0.15), ("dispatcher", 0.40), ("postgres-state", 0.65))

_PICTURE = """
    SELECT count(*) AS tasks, count(*) FILTER (WHERE status = 'Completed') AS completed,
           coalesce(sum(attempt), 0) AS attempts
    FROM tasks"""
_BY_JOB = """
    SELECT j.name, count(*) AS tasks, count(DISTINCT t.unit_key) AS units
    FROM tasks t JOIN jobs j USING (job_id) WHERE t.status = 'Completed' GROUP BY j.name"""
_BY_OUTCOME = "SELECT outcome, count(*) AS attempts FROM task_attempts GROUP BY outcome"


class Picture(msgspec.Struct, frozen=True):
    tasks: int
    completed: int
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
    expected: dict[str, int] = field(default_factory=dict)
    made: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Per job: completed tasks, and the distinct units they were for."""
    replaced: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Every unit of every job was done by exactly one task, and no other attempt was taken as a result too."""
        once = {name: (units, units) for name, units in self.expected.items()}
        return self.made == once and "Completed" not in self.replaced


class DemoError(Exception):
    """The demo could not go on; the message says why."""


@click.command()
@click.option(
    "--units",
    type=click.IntRange(20, 20_000),
    default=300,
    show_default=True,
    help="Units of 100 blocks to do.",
)
@click.option("--keep", is_flag=True, help="Keep the demo's home directory and say where it is.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one line of JSON.")
def command(units: int, keep: bool, as_json: bool) -> None:
    """Run a DAG on a stack of its own while parts of it are killed, and show what happened.

    Nothing outside a temporary directory is touched. Exit status 0 means: every unit of every job was done once.
    """
    console = Console(stderr=as_json)
    scratch = Path(tempfile.mkdtemp(prefix="trace-demo-"))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        story = _run(scratch / "home", units, console)
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


def _run(home: Path, units: int, console: Console) -> Story:
    console.print("Starting a stack: two Postgres clusters, a Dispatcher, two workers ...")
    started = time.monotonic()
    stack = _Stack(home)
    try:
        info = stack.start()
        console.print(f"Ready after {time.monotonic() - started:.1f} s. Leases last 3 s here, so that you can watch.")
        return asyncio.run(_work(Home(home), info, units, console))
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


async def _work(home: Home, info: Stack, units: int, console: Console) -> Story:
    client = UserClient.of_stack(info)
    try:
        await _begin(client, units, console)
        return await _watch(home, units, console)
    finally:
        await client.close()


async def _begin(client: UserClient, units: int, console: Console) -> None:
    """Deploy the DAG and ask it for one range; everything after that happens by itself."""
    text = files("tracelake.processes").joinpath("demo.yaml").read_bytes()
    deployed = await client.deploy(_DAG, text, activate=True)
    names = " > ".join(change.job for change in deployed.plan.jobs)
    console.print(f"Deployed version {deployed.plan.version} of the DAG: {names}", highlight=False)
    last = units * _UNIT - 1
    await client.trigger(_DAG, "request", TriggerRequest(range=BlockRange(start=0, end=last), idempotency_key="demo"))
    console.print(f"Triggered blocks 0 to {last:,}: {units} units of {_UNIT} blocks.", highlight=False)


def _expected(units: int) -> dict[str, int]:
    windows = units * _UNIT // _WINDOW
    jobs = {"split": 1, "work": units, "windows": units, "summary": windows}
    return {name: tasks for name, tasks in jobs.items() if tasks}


async def _watch(home: Home, units: int, console: Console) -> Story:
    story = Story(expected=_expected(units))
    tasks = sum(story.expected.values())
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
            _kill_if_due(home, story, picture, tasks)
            show(picture, str(story.kills[-1]) if story.kills else "two workers share the tasks")
            if picture.completed == picture.tasks and picture.tasks >= tasks:
                break
            await asyncio.sleep(0.1)
    story.seconds = time.monotonic() - begun
    story.picture = picture
    await _ask_tables(home, story)
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


async def _ask_tables(home: Home, story: Story) -> None:
    connection = await asyncpg.connect(home.state_dsn_file.read_text().strip())
    try:
        story.made = {name: (tasks, units) for name, tasks, units in await connection.fetch(_BY_JOB)}
        story.replaced = {row["outcome"]: row["attempts"] for row in await connection.fetch(_BY_OUTCOME)}
    finally:
        await connection.close()


def _kill_if_due(home: Home, story: Story, picture: Picture, tasks: int) -> None:
    if len(story.kills) == len(_KILLS) or (story.kills and story.kills[-1].recovered is None):
        return
    name, share = _KILLS[len(story.kills)]
    if picture.completed < share * tasks:
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
    for name, units in story.expected.items():
        tasks, distinct = story.made.get(name, (0, 0))
        table.add_row(f"{tasks}", f"tasks of [bold]{name}[/bold] completed, for {distinct} of {units} units")
    table.add_row(f"{picture.attempts}", "attempts in all")
    table.add_row(f"{failures}", "attempts failed by themselves and were retried")
    table.add_row(f"{timeouts}", "attempts died with their worker; after the lease they were retried")
    for kill in story.kills:
        back = "not seen back" if kill.recovered is None else f"work went on after {kill.recovered:.1f} s"
        table.add_row("1", f"SIGKILL of {kill.part}: {back}")
    table.add_row(f"{story.seconds:.1f} s", "from the trigger to the last task")
    show(console, table)
    if story.good:
        console.print("[green]Nothing was lost and nothing was done twice.[/green]")
        console.print("Next: [bold].venv/bin/trace up[/bold], and in another terminal")
        console.print("      [bold].venv/bin/trace deploy examples/block_ranges.yaml[/bold]")
    else:
        console.print("[red]Not every unit was done exactly once.[/red] Run again with --keep and look at the logs.")
