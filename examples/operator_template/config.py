"""The config of `rows_per_block`. Copy it to src/tracelake/catalogue/rows_per_block.py.

A deploy checks the config, without Spark, and reports errors with their field. Checks that msgspec cannot express (two
fields that exclude each other) belong in `__post_init__` and raise `ConfigFieldError`.
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
