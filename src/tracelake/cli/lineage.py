"""`trace lineage`: where a dataset comes from, who reads it, and which task made which unit."""

from collections.abc import Callable, Sequence

import click
from rich.text import Text
from rich.tree import Tree

from tracelake.cli.options import RANGE_OR_WINDOWS, cursor_option, limit_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, clean, count, unit_text
from tracelake.client.paging import collect
from tracelake.wire import routes
from tracelake.wire.datasets import CommitBatch, LineageEdge, LineageReply, LineageUnit, ReadRange
from tracelake.wire.jobs import BlockRange
from tracelake.wire.units import PayloadInput

_MAX_NODES = 500
"""The most nodes that are drawn; `--json` has everything."""
_BATCHES_SHOWN = 3
"""The batches shown of each commit; `--unit` shows all that are known of one."""


@click.command()
@click.argument("dataset")
@click.option("--unit", metavar="KEY", help="Only the unit with this key or cursor, or the window of this date.")
@click.option(
    "--range",
    "blocks",
    type=RANGE_OR_WINDOWS,
    help="Only units that touch these blocks, like 1000-2000; or these windows, like 2026-03-01..2026-03-03.",
)
@limit_option(20)
@cursor_option
@user_command
def command(
    session: Session, dataset: str, unit: str | None, blocks: BlockRange | str | None, limit: int, cursor: str | None
) -> None:
    """Draw which jobs and datasets DATASET is computed from and which read it, and list its units with their tasks.

    The units of a buffered dataset are the commits of its table, each with its batches: the job, the unit and the task
    that wrote them. --unit NUMBER shows more of one commit.

    \b
    Examples:
      trace lineage prices
      trace lineage prices --range 18_000_000-18_001_000
      trace lineage prices --unit 2026-01-31
      trace lineage prices --range 2026-01-01..2026-01-31
      trace lineage large_transfers --unit 15
    """
    if unit is not None and blocks is not None:
        raise click.UsageError("Give --unit or --range, not both.")
    start, end = (blocks.start, blocks.end) if isinstance(blocks, BlockRange) else (None, None)
    selected = unit if blocks is None or isinstance(blocks, BlockRange) else blocks
    reply = session.ask(
        lambda client: collect(
            client,
            routes.SHOW_LINEAGE,
            "units",
            limit=limit,
            cursor=cursor,
            name=dataset,
            unit=selected,
            start=start,
            end=end,
        ),
        dataset=dataset,
    )
    session.show(*lineage_trees(reply, most_batches=_BATCHES_SHOWN if unit is None else None))
    if not reply.units:
        session.say("The dataset has no such unit." if unit or blocks else "The dataset has no unit yet.")
    tasks = (task for row in reply.units for task in (row.task_id, *(batch.task_id for batch in row.batches)))
    newest_task = next((task for task in tasks if task is not None), None)
    if newest_task is not None:
        session.hint("see a task", "tasks", str(newest_task))
    if reply.next is not None:
        words = ["--unit", unit] if unit else [] if blocks is None else ["--range", _spelled(blocks)]
        session.hint("see the next page", "lineage", dataset, *words, "--limit", limit, "--cursor", reply.next)


def _spelled(blocks: BlockRange | str) -> str:
    return blocks if isinstance(blocks, str) else f"{blocks.start}-{blocks.end}"


def lineage_trees(reply: LineageReply, most_batches: int | None = _BATCHES_SHOWN) -> list[Tree]:
    name = clean(reply.dataset)
    trees = [
        _tree(
            Text.assemble((name, "bold"), " is computed from"),
            reply.upstream,
            reply.dataset,
            lambda edge: edge.to_dataset,
            lambda edge: edge.from_dataset,
        ),
        _tree(
            Text.assemble((name, "bold"), " is read by"),
            reply.downstream,
            reply.dataset,
            lambda edge: edge.from_dataset,
            lambda edge: edge.to_dataset,
        ),
    ]
    if reply.units:
        trees.append(_units(reply.units, most_batches, more=reply.next is not None))
    return trees


def _tree(
    title: Text,
    edges: Sequence[LineageEdge],
    root: str,
    near: Callable[[LineageEdge], str | None],
    far: Callable[[LineageEdge], str | None],
) -> Tree:
    """Draws the edges from the top to the bottom: a dataset is expanded where it is named first, and only named after
    that, so that cycles end."""
    tree = Tree(title, guide_style="dim")
    edges_by_dataset: dict[str | None, dict[tuple[str, str], list[LineageEdge]]] = {}
    for edge in edges:
        edges_by_dataset.setdefault(near(edge), {}).setdefault((edge.dag, edge.job), []).append(edge)
    drawn, nodes = {root}, 0
    # Edges that are still to be drawn below a dataset, with its jobs that are drawn; the next edge is the last.
    waiting: list[tuple[Tree, dict[tuple[str, str], Tree], LineageEdge]] = []

    def expand(branch: Tree, dataset: str) -> None:
        jobs: dict[tuple[str, str], Tree] = {}
        own = [edge for group in edges_by_dataset.get(dataset, {}).values() for edge in group]
        waiting.extend((branch, jobs, edge) for edge in reversed(own))

    expand(tree, root)
    while waiting:
        branch, jobs, edge = waiting.pop()
        nodes += 1
        if nodes > _MAX_NODES:
            branch.add(Text("and more: see --json", style="dim"))
            return tree
        key = (edge.dag, edge.job)
        if key not in jobs:
            jobs[key] = branch.add(Text(clean(f"{edge.dag}/{edge.job}"), style="cyan"))
        end = far(edge)
        if not end:
            continue
        again = end in drawn
        twig = jobs[key].add(Text.assemble(clean(end), (" (see above)" if again else "", "dim")))
        if not again:
            drawn.add(end)
            expand(twig, end)
    if not tree.children:
        tree.add(Text("nothing", style="dim"))
    return tree


def _units(units: Sequence[LineageUnit], most_batches: int | None, *, more: bool) -> Tree:
    """One line for each unit, in order of blocks."""
    rows = sorted(units, key=_first_block)
    part = "" if not more else "first " if rows == list(units) else "newest "
    tree = Tree(Text(part + count(len(units), "unit"), style="bold"), guide_style="dim")
    for row in rows:
        branch = tree.add(_unit(row))
        batches = row.batches[:most_batches]
        for batch in batches:
            branch.add(_batch(batch))
        if batches and (left := (row.batch_count or 0) - len(batches)) > 0:
            branch.add(Text(f"and {left:,} more", style="dim"))
    return tree


def _first_block(row: LineageUnit) -> int:
    """The block by which a unit is sorted; units without blocks keep their order."""
    if row.unit.cursor is not None:
        return row.unit.cursor.to
    return -1 if row.unit.start is None else row.unit.start


def _unit(row: LineageUnit) -> Text:
    if row.batches and row.unit.cursor is not None:
        number = count(row.batch_count or len(row.batches), "batch")
        return Text.assemble((f"commit {row.unit.cursor.to}", "bold"), f"  {ago(row.at)}  {number}")
    line = Text.assemble((unit_text(row.unit, row.window), "bold"), f"  {ago(row.at)}")
    if row.revision:
        line.append(f"  revision {clean(row.revision)}", style="dim")
    if row.task_id is None:
        return line.append(f"  announced by {clean(row.producer)}")
    files = "" if row.files is None else f", {count(row.files, 'file')}"
    line.append(f"  {row.task_id}  ")
    line.append(clean(f"{row.dag}/{row.job}, attempt {row.attempt}{files}"), style="cyan")
    for item in row.inputs:
        parts = _read_words(row, item)
        line.append("  from ", style="dim").append(f"{clean(item.name)} {', '.join(parts)}")
    return line


def _read_words(row: LineageUnit, item: PayloadInput) -> list[str]:
    """What was read of an input; of one that is not kept in files, the unit."""
    requested = unit_text(item.unit, item.window) or "all"
    read = next((read for read in row.input_reads if read.input_index == item.input_index), None)
    if read is None:
        return [requested]
    parts = [_range(part) for part in row.read if part.input_index == item.input_index]
    if (left := read.ranges - len(parts)) > 0:
        parts.append(f"and {count(left, 'more range')}")
    if read.looked_to is not None:
        parts.append(f"and units above {read.looked_to} that are not listed")
    if read.reads_table:
        above = "" if read.table_above is None else f"above {read.table_above} "
        parts.append(f"rows {above}of the table")
    if read.deleted_units:
        parts.append(f"and {count(read.deleted_units, 'unit')} whose revision is not recorded any more")
    elif not read.read_known:
        parts.append(f"not recorded (asked {requested})")
    return parts or ["nothing"]


def _range(part: ReadRange) -> str:
    words = part.window or ("all" if part.start is None else f"{part.start}-{part.end}")
    return f"{clean(words)}@{part.revision}"


def _batch(batch: CommitBatch) -> Text:
    """The job, unit and task that wrote the batch."""
    line = Text(clean(f"{batch.dag}/{batch.job}"), style="cyan")
    if batch.unit is not None:
        line.append(f" {unit_text(batch.unit)}", style="bold")
    return line.append(f"  {batch.task_id}{f', attempt {batch.attempt}' if batch.attempt > 1 else ''}", style="default")
