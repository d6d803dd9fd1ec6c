"""`trace datasets`: the datasets, or everything about one."""

from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from tracelake.cli.checks import checks_listing
from tracelake.cli.jobs import edge_text
from tracelake.cli.listing import Cell, Listing, ListingColumn, fields, sections
from tracelake.cli.session import Session, user_command
from tracelake.cli.sql_completion import RESERVED
from tracelake.cli.sql_text import quote_name
from tracelake.cli.text import ago, clean, count, moment, size_text, span, storage_text
from tracelake.wire import routes
from tracelake.wire.datasets import (
    BufferedTableRow,
    DatasetContent,
    DatasetDetail,
    DatasetRow,
    DatasetsReply,
    GenerationRow,
)

_STATES = {"current": "green", "staged": "yellow", "past": "dim"}
_RANGES_SHOWN = 5
_COLUMNS_ASKED = 2


@click.command()
@click.argument("name", required=False)
@user_command
def command(session: Session, name: str | None) -> None:
    """List the datasets, or show the dataset called NAME: columns, content, readers, history, and how to read it.

    Columns are known as soon as the DAG is deployed; a type that is not certain before the job runs is `unknown`.

    A generation is one complete set of the dataset's data; a version of a DAG that computes it differently writes a new
    one. The storage is `s3` for files, `buffered` for a table that several jobs may write in batches, `postgres` for
    a table that its job writes itself, `live` for files with a table of the newest rows above them, and `events only`
    (`none` in --json) for a dataset whose events are published and which holds no rows.

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
        session.hint_first_dag("deploy a DAG that declares some")
        return
    session.show(datasets_listing(reply))
    session.hint("see one", "datasets", _published_first(reply)[0].name)


def _show_one(session: Session, name: str) -> None:
    detail = session.ask(lambda client: client.call(routes.SHOW_DATASET, name=name), dataset=name)
    session.show(*dataset_parts(detail))
    if detail.dataset.dead_letters:
        session.hint("see the refused batches", "dlq", "list", "--dataset", name)
    if detail.dataset.storage in ("s3", "buffered", "live") or (
        detail.dataset.storage == "postgres" and detail.columns
    ):
        statement = example_query(detail)
        session.hint("see its rows", "read", name)
        session.hint("ask it in SQL", "query", statement)
        session.say_to_copy("in Python", python_statement(statement))
    session.hint("see where it comes from", "lineage", name)
    session.hint("see its updates", "events", "--dataset", name)


def example_query(detail: DatasetDetail) -> str:
    """A query that shows some columns and rows."""
    names = [quote_name(column.name, RESERVED) for column in detail.columns[:_COLUMNS_ASKED]]
    dataset = quote_name(detail.dataset.name, RESERVED)
    return f"SELECT {', '.join(names) or '*'} FROM {dataset} LIMIT 10"  # noqa: S608 - for people


def python_statement(statement: str) -> str:
    """One line of Python that runs the query."""
    mark = "'" if '"' in statement else '"'
    return f"from tracelake.client import query; query({mark}{statement}{mark})"


def datasets_listing(reply: DatasetsReply) -> Listing:
    return Listing(
        _published_first(reply),
        ListingColumn("dataset", lambda row: Text(clean(row.name), style="bold" if row.published else "dim")),
        ListingColumn("storage", lambda row: storage_text(row.storage), whole=True),
        ListingColumn("written by", _writer),
        ListingColumn("windows", lambda row: clean(row.windows or "")),
        ListingColumn("blocks", lambda row: row.blocks if _positions(row) == "blocks" else None, right=True),
        ListingColumn("deliveries", lambda row: row.blocks if _positions(row) == "deliveries" else None, right=True),
        ListingColumn("gaps", lambda row: Text(_gaps(row), style="yellow"), whole=True),
        ListingColumn("up to", _up_to, right=True),
        ListingColumn("generations", lambda row: row.generations, right=True),
        ListingColumn("batches", _batches, whole=True),
        ListingColumn(
            "build", lambda row: Text("" if row.staged_version is None else "building", style="yellow"), whole=True
        ),
        ListingColumn("updated", lambda row: ago(row.updated_at), whole=True),
    )


def _published_first(reply: DatasetsReply) -> list[DatasetRow]:
    """Those with names that people chose, and then those between the jobs of a DAG."""
    return sorted(reply.datasets, key=lambda row: not row.published)


def _gaps(row: DatasetRow) -> str:
    """`2`, `2 (1 given up)`; empty if nothing is missing."""
    if not row.given_up_units:
        return f"{row.gap_count:,}" if row.gap_count else ""
    return f"{max(row.gap_count, row.given_up_units):,} ({row.given_up_units:,} given up)"


def _up_to(row: DatasetRow) -> str | int | None:
    """The highest cursor; for a buffered dataset it is the number of a commit."""
    return f"commit {row.max_cursor}" if _is_buffered(row) and row.max_cursor is not None else row.max_cursor


def _is_buffered(row: DatasetRow) -> bool:
    return row.storage == "buffered"


def _batches(row: DatasetRow) -> Text:
    """The batches that are not in the table of a buffered dataset; empty if all are."""
    text = Text(f"{row.waiting_batches:,} waiting" if row.waiting_batches else "")
    if row.dead_letters:
        text.append(", " if text else "").append(f"{row.dead_letters:,} refused", style="bold red")
    return text


def _writer(row: DatasetRow) -> Text:
    several = row.job is None and row.writers
    text = Text(clean(", ".join(row.writers) if several else "/".join(part for part in (row.dag, row.job) if part)))
    if row.retired_after is not None:
        text.append(f" retired (last written in v{row.retired_after})", style="yellow")
    if row.stale is not None:
        now = ", rebuild in progress" if row.stale.rebuilding else ""
        text.append(f" stale ({row.stale.because} was rebuilt{now})", style="yellow")
    return text


def dataset_parts(detail: DatasetDetail) -> list[RenderableType]:
    row = detail.dataset
    pairs: list[tuple[str, Cell]] = [
        ("dataset", Text(clean(row.name), style="bold")),
        ("description", clean(detail.description) or None),
        ("owner", clean(detail.owner) or None),
        ("storage", storage_text(row.storage) + ("" if row.published else ", not published")),
        ("rows are in", live_text(detail)),
        ("written by", _writer(row)),
        ("uuid", str(row.dataset_uuid)),
        ("current generation", str(row.current_version)),
        ("building generation", None if row.staged_version is None else str(row.staged_version)),
        *_content(row, detail.content, given_up=bool(detail.given_up_count)),
        ("given up", _given_up(detail)),
        *_table(row, detail.table),
        *_keys(detail.schema),
        ("updated", moment(row.updated_at)),
    ]
    return [
        fields(pairs),
        *sections(
            ("Columns" if detail.columns_complete else "Columns (there may be others)", _columns(detail)),
            ("Checks", checks_listing(detail.checks)),
            ("Generations", _generations(detail.generations, row.storage)),
            ("Readers", _readers(detail)),
            ("Current generation over time", _pointers(detail)),
            ("Invalidations", _invalidations(detail)),
        ),
    ]


def live_text(detail: DatasetDetail) -> str | None:
    """Where the rows of a live dataset are; None for others."""
    if detail.dataset.storage != "live":
        return None
    if detail.boundary is None:
        return "a table, and files of what was there before it"
    return f"files up to block {detail.boundary:,}, a table above"


def _table(row: DatasetRow, table: BufferedTableRow | None) -> list[tuple[str, Cell]]:
    """The fields that only a buffered dataset has."""
    if not _is_buffered(row):
        return []
    waiting, dead = row.waiting_batches or 0, row.dead_letters or 0
    batches = Text.assemble(f"{waiting:,} waiting, ", (f"{dead:,} refused", "bold red" if dead else ""))
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
        ("on conflict", _conflict_rule(table)),
        ("on change", table.on_change),
        ("view", table.view),
        ("table", table.table),
    ]


def _conflict_rule(table: BufferedTableRow) -> str:
    return table.on_conflict if table.version_column is None else f"{table.on_conflict} {table.version_column}"


def _keys(schema: Any) -> list[tuple[str, Cell]]:
    """The columns that identify a row, and the indexes."""
    if not isinstance(schema, dict):
        return []
    unique = schema.get("unique") or []
    indexes = [f"({', '.join(map(str, index))})" for index in schema.get("indexes") or [] if isinstance(index, list)]
    return [
        ("unique", ", ".join(map(str, unique)) if isinstance(unique, list) else None),
        ("indexes", ", ".join(indexes)),
    ]


def _positions(row: DatasetRow) -> str:
    """What the units of the dataset are counted in."""
    if row.windows is not None:
        return "windows"
    return "deliveries" if row.of_deliveries else "blocks"


def _content(row: DatasetRow, content: DatasetContent | None, *, given_up: bool) -> list[tuple[str, Cell]]:
    """How much there is, of which blocks, and how fresh it is."""
    if content is None:
        if row.storage == "live":
            return [("files", "none are committed yet"), ("up to", row.max_cursor)]
        return [("content", "nothing is committed yet"), ("up to", None if _is_buffered(row) else row.max_cursor)]
    more = "more than " if content.more else ""
    about = "about " if content.estimated else more
    blocks = None
    if content.first_block is not None and content.last_block is not None and not _is_buffered(row):
        gaps = [gap.text for gap in content.gaps]
        left = content.gap_count - len(gaps)
        missing = ", ".join(gaps) + (f" and {left} more" if left > 0 else "")
        gap_text = "" if given_up else ", no gaps"
        if content.gap_count:
            gap_text = f"; {count(content.gap_count, 'gap')}: {missing}"
        covered = content.windows or f"{row.blocks or 0:,}, from {content.first_block} to {content.last_block}"
        blocks = covered + gap_text
    empty = f", {content.empty_units:,} of them without rows" if content.empty_units else ""
    return [
        ("batches in it" if _is_buffered(row) else "units", f"{more}{content.units:,}{empty}"),
        ("windows" if content.windows else _positions(row), blocks),
        ("rows", None if content.rows is None else f"{about}{content.rows:,}"),
        ("size", None if content.bytes is None else about + size_text(content.bytes)),
        ("newest commit", moment(content.committed_at)),
        (
            "newest delivery" if row.of_deliveries else "newest block",
            None if _is_buffered(row) or content.windows else _newest(content),
        ),
        ("up to", None if _is_buffered(row) or content.last_block is not None else row.max_cursor),
    ]


def _newest(content: DatasetContent) -> str | None:
    """The newest block, and its age."""
    if content.last_block is None:
        return None
    return str(content.last_block) + (f", of {moment(content.data_at)}" if content.data_at else "")


def _given_up(detail: DatasetDetail) -> Text | None:
    """Units that nothing will compute."""
    if not detail.given_up_count:
        return None
    first = detail.given_up[:_RANGES_SHOWN]
    text = ", ".join(f"unit {item.unit} of {item.job} ({item.state})" for item in first)
    left = detail.given_up_count - len(first)
    return Text(clean(text + (f" and {left:,} more" if left > 0 else "")), style="yellow")


def _columns(detail: DatasetDetail) -> Listing:
    declared = detail.schema.get("columns", []) if isinstance(detail.schema, dict) else []
    limits = {str(item.get("name")): _limits(item) for item in declared if isinstance(item, dict)}
    return Listing(
        detail.columns,
        ListingColumn("column", lambda column: clean(column.name)),
        ListingColumn("type", lambda column: clean(column.type)),
        ListingColumn("constraints", lambda column: limits.get(column.name, "")),
        ListingColumn("description", lambda column: clean(column.description)),
    )


def _limits(column: dict[str, Any]) -> str:
    words = ["not null"] if column.get("nullable") is False else []
    if isinstance(values := column.get("enum"), list):
        words.append("one of " + ", ".join(map(str, values)))
    return "; ".join(words)


def _generations(generations: list[GenerationRow], storage: str) -> Listing:
    has_commits = storage in ("s3", "buffered", "live")
    return Listing(
        generations,
        ListingColumn("generation", lambda row: str(row.dataset_version), whole=True),
        ListingColumn("state", lambda row: Text(row.state, style=_STATES[row.state]), whole=True),
        ListingColumn("created", lambda row: ago(row.created_at), whole=True),
        ListingColumn("ranges", _ranges),
        ListingColumn("keys", lambda row: row.partition_keys or None, right=True),
        ListingColumn("up to", lambda row: None if storage == "buffered" else row.max_cursor, right=True),
        ListingColumn("commits", lambda row: row.commits if has_commits else None, right=True),
    )


def _ranges(row: GenerationRow) -> str:
    texts = [clean(run.window or f"{run.start}-{run.end}") for run in row.ranges[:_RANGES_SHOWN]]
    more = max(row.range_count, len(row.ranges)) - len(texts)
    return ", ".join(texts) + (f" and {count(more, 'range')} more" if more > 0 else "")


def _readers(detail: DatasetDetail) -> Listing:
    return Listing(
        detail.consumers,
        ListingColumn("job", lambda row: f"{row.dag}/{row.job}"),
        ListingColumn("input", lambda row: edge_text(row.edge, commits=_is_buffered(detail.dataset))),
    )


def _pointers(detail: DatasetDetail) -> Listing:
    return Listing(
        detail.pointers,
        ListingColumn("generation", lambda row: str(row.dataset_version), whole=True),
        ListingColumn("since", lambda row: ago(row.since), whole=True),
        ListingColumn("dag version", lambda row: row.dag_version, right=True),
    )


def _invalidations(detail: DatasetDetail) -> Listing:
    return Listing(
        detail.invalidations,
        ListingColumn("range", lambda row: clean(row.window or f"{row.start}-{row.end}"), whole=True),
        ListingColumn("when", lambda row: ago(row.created_at), whole=True),
        ListingColumn("reason", lambda row: row.reason),
        ListingColumn("producer", lambda row: row.producer),
    )
