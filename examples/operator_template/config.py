"""What `rows_per_block` is told. Goes to src/tracelake/catalogue/rows_per_block.py.

The config is read when a DAG is deployed, long before Spark is there: what is wrong with it is said then, with its
field. Anything that msgspec cannot say (two fields that do not fit) is for `__post_init__`, as `ConfigFieldError`.
"""

from typing import Annotated

from msgspec import Meta

from tracelake.catalogue.spec import OperatorConfig, OperatorSpec


class RowsPerBlockConfig(OperatorConfig, frozen=True, kw_only=True):
    least: Annotated[int, Meta(ge=1)] = 1
    """Blocks with fewer rows are left out."""


SPEC = OperatorSpec(
    "rows_per_block",
    RowsPerBlockConfig,
    "Counts the rows of each block.",
    runtimes=frozenset({"ecs_platform"}),
    output_storage="s3",
)
