"""The config of `parquet_compact`, which makes files of final rows of live datasets."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from tracelake.catalogue.evm import EvmColumnChoice, EvmIngestConfig
from tracelake.catalogue.evm_columns import EVM_OPTIONAL_COLUMNS, EVM_TABLES, EvmTable, evm_columns
from tracelake.catalogue.spec import (
    WORKERS,
    ConfigFieldError,
    JobInput,
    OperatorConfig,
    OperatorSpec,
    ResultColumns,
    Writes,
)
from tracelake.model.columns import DatasetColumns


class ParquetCompactConfig(OperatorConfig, frozen=True, kw_only=True):
    tables: Annotated[tuple[EvmTable, ...], Meta(min_length=1, max_length=3)] = EVM_TABLES
    """Output 0 is the first table, output 1 the second, and so on. `blocks` is always one of them."""
    columns: EvmColumnChoice | None = None
    """By table, the optional columns that its files have after the others: those of the jobs that write the dataset."""
    chunk_blocks: Annotated[int, Meta(ge=1, le=100_000)] = 250
    """Blocks whose rows go into one file."""

    def __post_init__(self) -> None:
        # Both operators write files of the same datasets: what one refuses, the other does.
        EvmIngestConfig(chain_id=1, tables=self.tables, columns=self.columns)
        if "blocks" not in self.tables:
            raise ConfigFieldError("tables", "`blocks` must be one of them: they show whether rows are complete")

    def _chosen_columns(self, table: EvmTable) -> tuple[str, ...]:
        return () if self.columns is None else getattr(self.columns, table)

    def optional_columns(self, table: EvmTable) -> tuple[str, ...]:
        """The chosen ones, in the order of the files."""
        names = self._chosen_columns(table)
        return tuple(column.name for column in EVM_OPTIONAL_COLUMNS[table] if column.name in names)

    def writes(self) -> Writes:
        return Writes(len(self.tables), 1, f"tables: [{', '.join(self.tables)}]", "tables")

    def result(self, output_index: int, inputs: Sequence[JobInput]) -> ResultColumns | None:  # noqa: ARG002
        if output_index >= len(self.tables):
            return None
        table = self.tables[output_index]
        return ResultColumns(DatasetColumns(columns=evm_columns(table, self._chosen_columns(table))))


SPEC = OperatorSpec(
    "parquet_compact",
    ParquetCompactConfig,
    "Writes final rows of the tables of live datasets to Parquet files: `blocks`, `transactions`, `logs`.",
    runtimes=WORKERS,
    output_storage="s3",
    only_files=True,
    trusted=True,
    checks="rows",
)
