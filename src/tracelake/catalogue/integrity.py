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


class IntegrityCheckConfig(OperatorConfig, frozen=True, kw_only=True):
    fail_on: Literal["error", "warning", "never"] = "error"
    """The task fails for good on a finding of at least this severity. `never`: findings are only written."""

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
    only_files=True,
    checks="sql",
)
