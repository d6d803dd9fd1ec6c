"""The end of the story: what was made, where it comes from, what it took."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracelake.cli.lineage import lineage_trees
from tracelake.cli.query_table import render, show_result
from tracelake.cli.session import show
from tracelake.cli.text import count, unit_text
from tracelake.demo.function_runs import FunctionStory
from tracelake.demo.functions import FUNCTIONS
from tracelake.demo.live_tables import live_as_json, tell_live
from tracelake.demo.plan import DAG, DemoPlan
from tracelake.demo.results import Flow, Results
from tracelake.demo.watch import Story
from tracelake.doc_pages import find_page
from tracelake.settings.home import Home

_TOP = 8
_MOST_WIDTH = 120
_KIB, _MIB = 1024, 1024 * 1024
TOKENS = {
    "5fbdb2315678afecb367f032d93f642f64180aa3": ("HUSD", 6),
    "e7f1725e7734ce288f8367e1bb143e90bb3f0512": ("GRN", 18),
    "9fe46736679d2d9a65f0992f2272de9f3c7fa6e0": ("BND", 24),
    "cf7ed3acca5a467e9e704c703e8d87f634fb0fc9": ("Relics", 0),
    "dc64a140aa3e981100a9beca4e685f962f0cf6c9": ("Wares", 0),
}
"""Names and decimals of the recorded chain's tokens; see examples/token_flows."""


def tell(console: Console, plan: DemoPlan, story: Story, results: Results) -> None:
    _say(console, "\nWhat it made", "bold")
    show(console, _datasets(results))
    _say(console, "\nBusiest flows: what each token moved in an hour (dataset hourly_flows)", "bold")
    if results.flows:
        show(console, _flows(results.flows, is_recorded=plan.recording is not None))
    else:
        _say(console, "No token was moved in these blocks.")
    _say(console, "\nWhere it comes from", "bold")
    _lineage(console, results)
    _functions(console, story.functions, results)
    if results.live is not None:
        tell_live(console, results.live, TOKENS if plan.recording is not None else {})
    _say(console, "\nWhat it took", "bold")
    show(console, _numbers(plan, story, results))
    _say(console, "\nIs it right?", "bold")
    for check in results.all_checks:
        show(console, Text(f"{'yes' if check.right else 'NO':>3}  {check.said}", style="" if check.right else "red"))
    _say(console, "\nAsk it yourself: SQL over files and tables (`trace query`)", "bold")
    if not results.answers:
        page = find_page("query.md")
        _say(console, f"This machine cannot isolate queries, so its stack runs no Query Service: see {page}.")
    for answer in results.answers:
        _say(console, f"\n{answer.question.text}")
        _say(console, answer.question.sql, "cyan")
        width = min(console.width, _MOST_WIDTH)
        show_result(console, render(answer.reply.columns, answer.reply.rows, width))


def as_json(plan: DemoPlan, story: Story, results: Results, home: Home | None) -> dict[str, Any]:
    kill = story.kill
    return {
        "ok": results.right,
        "chain_id": plan.chain_id,
        "first_block": plan.first,
        "last_block": plan.last,
        "blocks": plan.blocks,
        "seconds": round(story.seconds, 1),
        "blocks_per_s": round(plan.blocks / story.seconds, 1),
        "tasks": results.tasks,
        "attempts": results.attempts,
        "retries": results.attempts - results.tasks,
        "findings": results.findings,
        "flows": len(results.flows),
        "busiest_flows": [
            {
                "hour": datetime.fromtimestamp(flow.hour, UTC).isoformat().replace("+00:00", "Z"),
                "token": f"0x{flow.token}",
                "standard": flow.standard,
                "transfers": flow.transfers,
                "amount": flow.amount,
            }
            for flow in _busiest(results.flows)
        ],
        "datasets": {each.name: {"rows": each.rows, "files": each.files, "bytes": each.bytes} for each in results.made},
        "killed": None
        if kill is None
        else {
            "worker": kill.worker,
            "tasks": len(kill.left),
            "recovered": len(kill.returns),
            "recovery_seconds": round(kill.seconds, 1),
        },
        "table": {
            "batches": story.table.batches,
            "sink_killed": None if story.table.kill is None else story.table.kill.batches,
            "recovery_seconds": None
            if story.table.kill is None or story.table.kill.seconds is None
            else round(story.table.kill.seconds, 1),
            "refused": story.table.refused,
            "retried": story.table.retried,
        },
        "functions": _functions_json(story.functions),
        "queries": [
            {
                "question": answer.question.text,
                "sql": answer.question.sql,
                "columns": [column.name for column in answer.reply.columns],
                "rows": answer.reply.rows,
            }
            for answer in results.answers
        ],
        "live": None if results.live is None else live_as_json(results.live),
        "checks": [{"check": check.said, "ok": check.right} for check in results.all_checks],
        "home": None if home is None else str(home.root),
    }


def next_steps(console: Console, plan: DemoPlan, kept_home: Home | None) -> None:
    trace = trace_command()
    if kept_home is None:
        _say(console, "\nNext", "bold")
        _steps(
            console,
            [
                ("the same, and the stack stays up to look around", f"{trace} demo --keep"),
                ("the same on a chain of your own", f"{trace} demo --rpc http://127.0.0.1:8545"),
                ("a stack of your own, to keep", f"{trace} up"),
            ],
        )
        return
    home = f"--home {shlex.quote(str(kept_home.root))}"
    unit = f"{plan.first}-{min(plan.last, plan.first // plan.unit * plan.unit + plan.unit - 1)}"
    _say(console, f"\nThe stack is up. Its home is {kept_home.root}", "bold")
    _steps(
        console,
        [
            ("everything that goes on, live", f"{trace} top {home}"),
            ("its tasks; with an id, one of them and its attempts", f"{trace} tasks --dag {DAG} --limit 10 {home}"),
            ("rows of a dataset; with --output, all of them in a file", f"{trace} read hourly_flows {home}"),
            ("a prompt for SQL over all datasets", f"{trace} query {home}"),
            ("the table that two jobs write: its rows", f"{trace} read large_transfers {home}"),
            ("and what there is to know about it", f"{trace} datasets large_transfers {home}"),
            (
                "runs of a function, and what it printed",
                f"{trace} udf logs {FUNCTIONS[0].dag}/{FUNCTIONS[0].job} {home}",
            ),
            ("is a dataset fresh, and if not, why", f"{trace} why hourly_flows {home}"),
            ("which task made each unit, from what", f"{trace} lineage hourly_flows {home}"),
            ("do the first unit once more", f"{trace} trigger {DAG}/ingest --range {unit} --wait {home}"),
            ("stop it", f"{trace} down {home}"),
            ("once it is stopped, remove what it stored", f"rm -r {shlex.quote(str(kept_home.root.parent))}"),
        ],
    )


def trace_command() -> str:
    """The command that calls this program here, so that a line can be copied."""
    script = Path(sys.executable).with_name("trace")
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m tracelake"
    if shutil.which("trace") == str(script):
        return "trace"
    return shlex.quote(str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script))


def _steps(console: Console, steps: Sequence[tuple[str, str]]) -> None:
    for purpose, command in steps:
        # Never broken into lines: it is there to be copied.
        console.print(Text.assemble((f"{purpose}: ", "dim"), (command, "bold")), soft_wrap=True)


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


def _datasets(results: Results) -> Table:
    table = _table("dataset", "rows", "files", "size")
    for each in results.made:
        files = "a table" if each.files is None else f"{each.files:,}"
        table.add_row(each.name, f"{each.rows:,}", files, size(each.bytes))
    return table


def _flows(flows: Sequence[Flow], *, is_recorded: bool) -> Table:
    table = _table("hour (UTC)", "token", "standard", "transfers", "amount", left=3)
    for flow in _busiest(flows):
        name, decimals = TOKENS.get(flow.token, ("", 0)) if is_recorded else ("", 0)
        table.add_row(
            f"{datetime.fromtimestamp(flow.hour, UTC):%Y-%m-%d %H:%M}",
            name or f"0x{flow.token[:6]}...{flow.token[-4:]}",
            flow.standard,
            f"{flow.transfers:,}",
            amount(flow.amount / 10**decimals),
        )
    return table


def _busiest(flows: Sequence[Flow]) -> list[Flow]:
    return sorted(flows, key=lambda flow: -flow.transfers)[:_TOP]


def _lineage(console: Console, results: Results) -> None:
    reply = results.lineage
    show(console, lineage_trees(reply)[0])
    newest = max(reply.units, key=lambda row: (row.attempt or 0, str(row.unit.partition_key)), default=None)
    if newest is not None:
        read = (f"{part.dataset} {part.start}-{part.end}" for part in newest.read)
        _say(
            console,
            f"{count(len(reply.units), 'day')}; {unit_text(newest.unit, newest.window)} is from "
            f"{newest.dag}/{newest.job}, made of {' and '.join(read)}",
        )


def _functions(console: Console, story: FunctionStory, results: Results) -> None:
    _say(console, "\nUsers' functions: untrusted code, each run in a sandbox of its own (`trace udf`)", "bold")
    if story.problem is not None:
        _say(console, f"None ran: {story.problem}. See {find_page('functions.md')}.")
        return
    rows = {each.name: each.rows for each in results.made}
    table = _table("function", "language", "publishes", "runs", "rows", left=3)
    for function in story.functions:
        runs = sum(task.status == "Completed" for task in story.of(function))
        table.add_row(function.job, function.title, function.dataset, f"{runs:,}", f"{rows[function.dataset]:,}")
    show(console, table)
    for job, reason in story.skipped.items():
        _say(console, f"{job} was left out: {reason}.")
    _say(console, "\nA hostile function, and how each of its attempts ended", "bold")
    table = _table("it tried to", "what came of it", left=2)
    for attempt in story.attempts:
        table.add_row(attempt.tried, Text(attempt.result, style="" if attempt.refused else "red"))
    table.add_row("take all memory", story.memory_end)
    show(console, table)


def _functions_json(story: FunctionStory) -> dict[str, Any]:
    return {
        "problem": story.problem,
        "left_out": story.skipped,
        "runs": {
            function.job: sum(task.status == "Completed" for task in story.of(function)) for function in story.functions
        },
        "hostile": None
        if story.problem is not None
        else {
            "attempts": [
                {"tried": attempt.tried, "refused": attempt.refused, "result": attempt.result}
                for attempt in story.attempts
            ],
            "memory": story.memory_end,
            "runner_restarts": story.runner_restarts,
            "runs_afterwards": story.runs_afterwards,
        },
    }


def _numbers(plan: DemoPlan, story: Story, results: Results) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", style="bold")
    table.add_column()
    stored = [each for each in results.made if each.files is not None]
    rows, files = sum(each.rows for each in stored), sum(each.files or 0 for each in stored)
    table.add_row(f"{plan.blocks:,}", f"blocks of chain {plan.chain_id} ({plan.label})")
    table.add_row(f"{rows:,}", f"rows written, in {files:,} files of {size(sum(each.bytes for each in stored))}")
    table.add_row(f"{results.findings:,}", "integrity findings")
    retries = results.attempts - results.tasks
    again = "1 retry" if retries == 1 else f"{retries} retries"
    table.add_row(f"{results.tasks:,}", f"tasks, in {results.attempts:,} attempts ({again})")
    if story.functions.runs:
        table.add_row(f"{story.functions.runs:,}", "runs of functions, besides the hostile one")
    if story.kill is not None and story.kill.returns:
        task_count = count(len(story.kill.left), "task")
        table.add_row(
            f"{story.kill.seconds:.1f} s",
            f"from the kill of {story.kill.worker} until what it held ({task_count}) was taken up again",
        )
    filled = story.table
    if filled.kill is not None and filled.kill.seconds is not None:
        text = f"from the kill of the sink, after {filled.kill.batches} of {filled.batches} batches, until it went on"
        table.add_row(f"{filled.kill.seconds:.1f} s", text)
    if filled.refused:
        text = "task whose rows" if len(filled.refused) == 1 else "tasks whose rows"
        table.add_row(str(len(filled.refused)), f"{text} did not fit the schema, in the table once it was corrected")
    table.add_row(f"{story.seconds:.1f} s", "from the trigger to the last task")
    table.add_row(f"{plan.blocks / story.seconds:,.1f}", "blocks a second, the start of Spark and the kills included")
    return table


def _table(*columns: str, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    return table


def size(number: int) -> str:
    if number < _KIB:
        return f"{number} B"
    return f"{number / _KIB:,.0f} KiB" if number < _MIB else f"{number / _MIB:,.1f} MiB"


def amount(number: float) -> str:
    """Digits as long as they mean something."""
    if number >= 1e15:
        return f"{number:.3e}"
    return f"{number:,.0f}" if number >= 1000 or number == int(number) else f"{number:,.4g}"
