"""The tables that an attempt writes directly, or removes rows from; for operators of the platform alone."""

from collections.abc import Callable, Sequence

from tracelake.catalogue import CATALOGUE
from tracelake.catalogue.context import LiveOutput, NonRetryableError
from tracelake.ports.direct_tables import DirectTables, OutputTables, RowsRefusedError, TableWriter
from tracelake.storage.output_tables import DirectOutputs
from tracelake.wire.direct import DirectTable
from tracelake.wire.units import EventIn, TaskOutput
from tracelake.worker.attempt import Attempt


def open_outputs(
    attempt: Attempt,
    tables: DirectTables | None,
    declared: Callable[[TaskOutput], DirectTable | None],
    emit: Callable[[Sequence[EventIn]], None],
    scope: str,
) -> OutputTables:
    """Raises NonRetryableError if the operator or this worker may not write tables."""
    spec = CATALOGUE.get(attempt.task.operator)
    if spec is None or not spec.fills_tables:
        raise NonRetryableError(f"the operator {attempt.task.operator} may not write tables directly")
    if tables is None:
        raise NonRetryableError("this worker has no access to Postgres data, so it cannot write tables: set data_dsn")
    outputs = [output for output in attempt.task.outputs if output.storage.kind == "postgres"]
    output_tables = [(output, table) for output in outputs if (table := declared(output)) is not None]
    if not output_tables:
        raise NonRetryableError("no output of the job is a table that it writes: publish one with `storage: postgres`")
    writer = TableWriter(attempt.task_id, attempt.number)
    others = [output for output in attempt.task.outputs if output.storage.kind == "none"]
    return DirectOutputs.open(tables, output_tables, scope, writer, emit, others)


def remove_rows(attempt: Attempt, tables: DirectTables | None, output: LiveOutput, to: int) -> int:
    """Of an output of the task that is a live dataset: rows that committed files have. Raises NonRetryableError if the
    operator or this worker may not do it."""
    spec = CATALOGUE.get(attempt.task.operator)
    own = {item.dataset_uuid for item in attempt.task.outputs if item.storage.kind == "s3"}
    if spec is None or not spec.trusted or output.table.dataset_uuid not in own:
        raise NonRetryableError(f"the operator {attempt.task.operator} may not remove rows of this table")
    if output.boundary is None or to > output.boundary:
        raise NonRetryableError(f"rows up to {to} are not in committed files, which end at {output.boundary}")
    if tables is None:
        raise NonRetryableError("this worker has no access to Postgres data, so it cannot remove rows: set data_dsn")
    try:
        return tables.remove_rows([output.table.dataset_uuid], to)
    except RowsRefusedError as error:
        raise NonRetryableError(str(error)) from error
