"""The config of `integrity_check`."""

from typing import Literal

from tracelake.catalogue.spec import WORKERS, OperatorConfig, OperatorSpec, Writes

FINDING_COLUMNS = ("check", "block_number", "severity", "expected", "found", "detail")


class IntegrityCheckConfig(OperatorConfig, frozen=True, kw_only=True):
    fail_on: Literal["error", "warning", "never"] = "error"
    """The task fails for good on a finding of at least this severity. `never`: findings are only written."""

    def writes(self) -> Writes:
        return Writes(1)

    def columns(self, output_index: int) -> tuple[str, ...]:  # noqa: ARG002 - there is one output
        return FINDING_COLUMNS


SPEC = OperatorSpec(
    "integrity_check",
    IntegrityCheckConfig,
    "Checks that the blocks, transactions and logs of a range are complete and consistent.",
    runtimes=WORKERS,
    output_storage="s3",
    only_files=True,
)
