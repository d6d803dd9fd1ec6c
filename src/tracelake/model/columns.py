"""The columns of a dataset, as they are known before anything runs and kept with each of its generations."""

import msgspec

UNKNOWN_TYPE = "unknown"


class DatasetColumn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    type: str = UNKNOWN_TYPE
    """As Spark writes it: `bigint`, `decimal(20,0)`; `unknown` if it is not certain before the job runs."""
    nullable: bool = True
    description: str = ""


class DatasetColumns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    columns: tuple[DatasetColumn, ...] = ()
    complete: bool = True
    """False: the dataset may have other columns too."""


UNKNOWN_COLUMNS = DatasetColumns(complete=False)
