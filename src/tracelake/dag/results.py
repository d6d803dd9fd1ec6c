"""Compares the columns that a query returns with those of its buffered dataset, so that a mismatch is reported at
deploy and not batch by batch.

Before the query runs only the names of its columns are known; of `*` not even those.
"""

from tracelake.catalogue import CATALOGUE
from tracelake.catalogue.spec import ResultColumns
from tracelake.dag.draft import Draft, JobDraft, PublishDraft
from tracelake.dag.jobs import locate
from tracelake.dag.kinds import DocumentPlace
from tracelake.dag.problems import one_of, shown
from tracelake.model.dag import OutputAddress, Schema

OWNER = "org_id"
"""A row may have this column if it names the org of the publisher."""
_SHOWN = 20


def check_result(draft: Draft, job: JobDraft) -> None:
    operator = CATALOGUE.get(job.record.get("operator", ""))
    entry = _table(draft, job)
    config = None if operator is None else job.config(operator)
    result = None if config is None else config.result()
    if entry is None or entry.schema is None or result is None:
        return
    place = locate(job.record.at("config"), f".{result.field}", None)
    misspelled = _check_unknown(entry.name, entry.schema, result, place)
    if result.complete:
        _check_missing(entry.name, entry.schema, result, misspelled, place)


def _table(draft: Draft, job: JobDraft) -> PublishDraft | None:
    """The buffered dataset of the job's rows. An operator that knows its columns has one output."""
    if job.raw_name is None:
        return None
    entry = draft.publishers.get(OutputAddress(job=job.raw_name))
    return entry if entry is not None and entry.buffered else None


def _check_unknown(name: str, schema: Schema, result: ResultColumns, place: DocumentPlace) -> set[str]:
    """Report unknown columns; returns the columns that the suggestions name."""
    names = [column.name for column in schema.columns]
    known_columns = {*names, OWNER}
    unknown = [column for column in result.places if column not in known_columns]
    if not unknown:
        return set()
    free = [column for column in names if column not in result.places]
    hints = [place.problems.did_you_mean(column, free) for column in unknown[:_SHOWN]]
    listed = ", ".join(f"{shown(column)} ({result.places[column]})" for column in unknown[:_SHOWN])
    hint = " ".join(dict.fromkeys(filter(None, hints))) or f"It has {one_of(names[:_SHOWN])}."
    columns = "column" if len(unknown) == 1 else "columns"
    place.problem("unknown_column", f"The schema of {shown(name)} has no {columns} {listed}.", hint)
    return {column for column in free if any(f"`{column}`" in text for text in hints)}


def _check_missing(
    name: str, schema: Schema, result: ResultColumns, misspelled: set[str], place: DocumentPlace
) -> None:
    missing = [
        column.name
        for column in schema.columns
        if not column.nullable and column.name not in result.places and column.name not in misspelled
    ]
    if not missing:
        return
    one = len(missing) == 1
    columns, are, them = ("column", "is", "it") if one else ("columns", "are", "them")
    message = f"The result has no {columns} {one_of(missing[:_SHOWN])}, which {are} never null in {shown(name)}."
    nullable = "" if set(missing) & set(schema.unique) else f", or let {them} be null"
    place.problem("missing_column", message, f"Add {them} to the query{nullable}.")
