"""`trace export`: a dataset as a directory of Parquet files for other tools, made and brought up to date."""

from pathlib import Path
from typing import Any

import click

from tracelake.cli.options import RANGE_OR_WINDOWS
from tracelake.cli.read import no_data_yet
from tracelake.cli.session import Session, live_view, user_command
from tracelake.cli.text import count
from tracelake.client.content import ApiContent
from tracelake.client.directory_export import export_directory
from tracelake.errors import TraceError
from tracelake.wire.content import ContentRequest

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@click.command()
@click.argument("dataset")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--range",
    "blocks",
    type=RANGE_OR_WINDOWS,
    help="Only units that touch these blocks, like 0-999; or these windows, like 2026-03-01..2026-03-03.",
)
@user_command
def command(session: Session, dataset: str, directory: Path, blocks: Any) -> None:
    """Write a dataset as a directory of Parquet files, or bring such a directory up to date.

    The directory has one directory per unit: unit=START-END/part-00000.parquet. DuckDB, Polars, Spark and Trino read
    it as one table with the partition column `unit`. All units are of one moment. A second run fetches only units that
    changed, and removes those that are gone; run it again whenever you like.

    _trace_export.json lists the files. Its `complete` is false while a run changes the directory, and after a run that
    was interrupted: run the command again.

    Rows of a table (a buffered dataset, or the newest rows of a live one) are in unit=table, which each run writes
    again. Files are readable by you alone (mode 0600); `chmod -R` shares them. Rows come over the public API, so the
    command works on any machine. docs/reading-files.md shows how to read the directory.

    \b
    Examples:
      trace export transfers transfers/
      trace export transfers transfers/ --range 0-3_999
      trace export daily_activity daily/ --range 2026-03-01..2026-03-03
      duckdb -c "SELECT unit, count(*) FROM 'transfers/*/*.parquet' GROUP BY unit"
    """
    content = ApiContent(session.run, dataset)
    try:
        start, end = content.find_ends(blocks)
        request = ContentRequest(start=start, end=end)
        with live_view(session.console) as update:
            report = export_directory(
                content,
                request,
                directory,
                lambda done, units: update(f"{done:,} of {units:,} units") if session.console.is_terminal else None,
            )
    except TraceError as error:
        raise no_data_yet(error, dataset) from None
    session.answer(report)
    session.say(
        f"{count(report.units, 'unit')} in {directory}: {report.fetched:,} fetched, {report.unchanged:,} unchanged,"
        f" {report.removed:,} removed; {count(report.files, 'file')}, {_size(report.bytes)}."
    )


def _size(number: int) -> str:
    for unit, name in _UNITS:
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number} B"
