"""`trace datasets`: the datasets, or everything about one."""

from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from tracelake.cli.jobs import edge_text
from tracelake.cli.listing import Cell, Listing, ListingColumn, fields
from tracelake.cli.missing import explained
from tracelake.cli.session import EXAMPLE, Session, user_command
from tracelake.cli.text import ago, clean, count, moment, span
from tracelake.wire import routes
from tracelake.wire.datasets import BufferedTableRow, DatasetDetail, DatasetRow, DatasetsReply, GenerationRow

_STATES = {"current": "green", "staged": "yellow", "past": "dim"}
_RANGES_SHOWN = 5


@click.command()
@click.argument("name", required=False)
@user_command
def command(session: Session, name: str | None) -> None:
    """List the datasets; with NAME, its generations, ranges, readers and history.

    Of a buffered dataset also its writers, its table and view, and the batches that are not in it.

    \b
    Examples:
      trace datasets
      trace datasets prices
      trace datasets prices --json
    """
    if name is None:
        _show_all(session)
    else:
        _show_one(session, name)


def _show_all(session: Session) -> None:
    reply = session.ask(lambda client: client.call(routes.LIST_DATASETS))
    if not reply.datasets:
        session.say("There is no dataset yet.")
        session.hint("deploy a DAG that makes some", "deploy", EXAMPLE)
        return
    session.show(datasets_listing(reply))
    session.hint("see one", "datasets", reply.datasets[0].name)


def _show_one(session: Session, name: str) -> None:
    detail = session.ask(lambda client: explained(client, client.call(routes.SHOW_DATASET, name=name), dataset=name))
    session.show(*dataset_parts(detail))
    if detail.dataset.dead_letters:
        session.hint("see what was refused", "dlq", "list", "--dataset", name)
    if detail.table is not None:
        session.hint("see its rows", "read", name)
    session.hint("see where it comes from", "lineage", name)
    session.hint("see its updates", "events", "--dataset", name)


def datasets_listing(reply: DatasetsReply) -> Listing:
    listing = Listing(
        [
            ListingColumn("dataset"),
            ListingColumn("storage", whole=True),
            ListingColumn("made by"),
            ListingColumn("blocks", right=True),
            ListingColumn("up to", right=True),
            ListingColumn("generations", right=True),
            ListingColumn("batches", whole=True),
            ListingColumn("build", whole=True),
            ListingColumn("updated", whole=True),
        ]
    )
    for row in reply.datasets:
        listing.add(
            Text(clean(row.name), style="bold" if row.published else "dim"),
            row.storage,
            _maker(row),
            row.blocks,
            _up_to(row),
            row.generations,
            _batches(row),
            Text("" if row.staged_version is None else "building", style="yellow"),
            ago(row.updated_at),
        )
    return listing


def _up_to(row: DatasetRow) -> str | int | None:
    """The highest cursor; that of a buffered dataset is the number of a commit."""
    return f"commit {row.max_cursor}" if _is_buffered(row) and row.max_cursor is not None else row.max_cursor


def _is_buffered(row: DatasetRow) -> bool:
    return row.storage == "buffered"


def _batches(row: DatasetRow) -> Text:
    """What is not in the table of a buffered dataset; nothing, if everything is."""
    text = Text(
        f"{row.waiting_batches:,} {'waits' if row.waiting_batches == 1 else 'wait'}" if row.waiting_batches else ""
    )
    if row.dead_letters:
        text.append(", " if text else "").append(f"{row.dead_letters:,} refused", style="bold red")
    return text


def _maker(row: DatasetRow) -> Text:
    several = row.job is None and row.writers
    text = Text(clean(", ".join(row.writers) if several else "/".join(part for part in (row.dag, row.job) if part)))
    if row.retired_after is not None:
        text.append(f" retired (last written in v{row.retired_after})", style="yellow")
    if row.stale is not None:
        now = ", being made again" if row.stale.rebuilding else ""
        text.append(f" stale ({row.stale.because} was rebuilt{now})", style="yellow")
    return text


def dataset_parts(detail: DatasetDetail) -> list[RenderableType]:
    row = detail.dataset
    parts: list[RenderableType] = [
        fields(
            [
                ("dataset", Text(clean(row.name), style="bold")),
                ("storage", row.storage if row.published else f"{row.storage}, not published"),
                ("made by", _maker(row)),
                ("uuid", str(row.dataset_uuid)),
                ("current", str(row.current_version)),
                ("building", None if row.staged_version is None else str(row.staged_version)),
                ("blocks", row.blocks),
                ("up to", None if _is_buffered(row) else row.max_cursor),
                *_table(row, detail.table),
                *_keys(detail.schema),
                ("updated", moment(row.updated_at)),
            ]
        )
    ]
    for title, listing in (
        ("Columns", _columns(detail)),
        ("Generations", _generations(detail.generations, row.storage)),
        ("Readers", _readers(detail)),
        ("Which generation was current when", _pointers(detail)),
        ("Invalidations", _invalidations(detail)),
    ):
        if listing.rows:
            parts += [Text(f"\n{title}", style="bold"), listing]
    return parts


def _table(row: DatasetRow, table: BufferedTableRow | None) -> list[tuple[str, Cell]]:
    """What a buffered dataset has beside others; of its batches also that none waits and none was refused."""
    if not _is_buffered(row):
        return []
    waiting, dead = row.waiting_batches or 0, row.dead_letters or 0
    batches = Text.assemble(
        f"{waiting:,} {'waits' if waiting == 1 else 'wait'}, ", (f"{dead:,} refused", "bold red" if dead else "")
    )
    if table is None:
        return [("last commit", row.max_cursor), ("batches", batches)]
    limits = [
        count(table.max_queue_depth, "batch") if table.max_queue_depth is not None else "",
        span(table.max_queue_age_seconds) if table.max_queue_age_seconds is not None else "",
    ]
    when = f", {moment(table.committed_at)}" if table.committed_at is not None else ""
    return [
        ("last commit", "none yet" if table.last_commit is None else f"{table.last_commit}{when}"),
        ("batches", batches),
        ("writers stop at", " or ".join(part for part in limits if part) or "no limit"),
        ("on conflict", table.on_conflict),
        ("view", table.view),
        ("table", table.table),
    ]


def _keys(schema: Any) -> list[tuple[str, Cell]]:
    """By what rows are told apart, and found."""
    if not isinstance(schema, dict):
        return []
    unique = schema.get("unique") or []
    indexes = [f"({', '.join(map(str, index))})" for index in schema.get("indexes") or [] if isinstance(index, list)]
    return [
        ("unique", ", ".join(map(str, unique)) if isinstance(unique, list) else None),
        ("indexes", ", ".join(indexes)),
    ]


def _columns(detail: DatasetDetail) -> Listing:
    listing = Listing([ListingColumn("column"), ListingColumn("type"), ListingColumn("more")])
    columns = detail.schema.get("columns", []) if isinstance(detail.schema, dict) else []
    for column in columns if isinstance(columns, list) else []:
        if isinstance(column, dict):
            listing.add(clean(str(column.get("name", ""))), clean(_type(column)), clean(_limits(column)))
    return listing


def _type(column: dict[str, Any]) -> str:
    """As it is written in a document."""
    size = ",".join(str(column[key]) for key in ("precision", "scale", "max_length") if column.get(key) is not None)
    return f"{column.get('type', '')}({size})" if size else str(column.get("type", ""))


def _limits(column: dict[str, Any]) -> str:
    words = ["never null"] if column.get("nullable") is False else []
    if isinstance(values := column.get("enum"), list):
        words.append("one of " + ", ".join(map(str, values)))
    return "; ".join(words)


def _generations(generations: list[GenerationRow], storage: str) -> Listing:
    listing = Listing(
        [
            ListingColumn("generation", whole=True),
            ListingColumn("state", whole=True),
            ListingColumn("made", whole=True),
            ListingColumn("ranges"),
            ListingColumn("keys", right=True),
            ListingColumn("up to", right=True),
            ListingColumn("commits", right=True),
        ]
    )
    for row in generations:
        listing.add(
            str(row.dataset_version),
            Text(row.state, style=_STATES[row.state]),
            ago(row.created_at),
            _ranges(row),
            row.partition_keys or None,
            None if storage == "buffered" else row.max_cursor,
            row.commits if storage in ("s3", "buffered") else None,  # nothing else is written by commits
        )
    return listing


def _ranges(row: GenerationRow) -> str:
    texts = [f"{run.start}-{run.end}" for run in row.ranges[:_RANGES_SHOWN]]
    more = max(row.range_count, len(row.ranges)) - len(texts)
    return ", ".join(texts) + (f" and {count(more, 'range')} more" if more > 0 else "")


def _readers(detail: DatasetDetail) -> Listing:
    listing = Listing([ListingColumn("job"), ListingColumn("input")])
    for row in detail.consumers:
        listing.add(f"{row.dag}/{row.job}", edge_text(row.edge, commits=_is_buffered(detail.dataset)))
    return listing


def _pointers(detail: DatasetDetail) -> Listing:
    listing = Listing(
        [
            ListingColumn("generation", whole=True),
            ListingColumn("since", whole=True),
            ListingColumn("dag version", right=True),
        ]
    )
    for row in detail.pointers:
        listing.add(str(row.dataset_version), ago(row.since), row.dag_version)
    return listing


def _invalidations(detail: DatasetDetail) -> Listing:
    listing = Listing(
        [
            ListingColumn("range", whole=True),
            ListingColumn("when", whole=True),
            ListingColumn("reason"),
            ListingColumn("producer"),
        ]
    )
    for row in detail.invalidations:
        listing.add(f"{row.start}-{row.end}", ago(row.created_at), row.reason, row.producer)
    return listing
