"""The config of `integrity_check`."""

from collections.abc import Sequence
from typing import Literal

from tracelake.catalogue.spec import WORKERS, JobInput, OperatorConfig, OperatorSpec, ResultColumns, Writes
from tracelake.model.columns import DatasetColumn, DatasetColumns

FINDING_COLUMNS = DatasetColumns(
    columns=(
        DatasetColumn(name="check", type="string", description="The check that found it."),
        DatasetColumn(name="block_number", type="bigint", description="The block."),
        DatasetColumn(name="severity", type="string", description="`error` or `warning`."),
        DatasetColumn(name="expected", type="string", description="What the check expected."),
        DatasetColumn(name="found", type="string", description="What it found."),
        DatasetColumn(name="detail", type="string", description="The finding in words."),
    )
)

IntegrityCheck = Literal[
    "gap",
    "duplicate_block",
    "parent_hash",
    "timestamp",
    "transaction_index",
    "duplicate_transaction",
    "transaction_block",
    "gas_used",
    "transaction_count",
    "log_index",
    "log_block",
    "log_transaction",
    "log_count",
]


class IntegrityCheckConfig(OperatorConfig, frozen=True, kw_only=True):
    fail_on: Literal["error", "warning", "never"] = "error"
    """The task fails without a retry on a finding of at least this severity. `never`: findings are only written."""
    ignore: tuple[IntegrityCheck, ...] = ()
    """Checks that are not made, for chains of which they are not true."""

    def writes(self) -> Writes:
        return Writes(1)

    def result(self, output_index: int, inputs: Sequence[JobInput]) -> ResultColumns:  # noqa: ARG002
        return ResultColumns(FINDING_COLUMNS)


SPEC = OperatorSpec(
    "integrity_check",
    IntegrityCheckConfig,
    "Checks that the blocks, transactions and logs of a range are complete and consistent.",
    runtimes=WORKERS,
    output_storage="s3",
    windows="blocks",
    only_files=True,
    checks="sql",
)
