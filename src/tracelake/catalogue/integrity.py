"""What `integrity_check` is told."""

from typing import Literal

from tracelake.catalogue.spec import OperatorConfig

FINDING_COLUMNS = ("check", "block_number", "severity", "expected", "found", "detail")


class IntegrityCheckConfig(OperatorConfig, frozen=True, kw_only=True):
    fail_on: Literal["error", "warning", "never"] = "error"
    """The task fails for good when something at least that bad is found. `never`: the findings are just written."""
