"""The config of `block_follower`, which follows the head of an EVM chain into tables."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from tracelake.catalogue.direct_schemas import table_schema
from tracelake.catalogue.evm import (
    ChainDeviations,
    EvmColumnChoice,
    EvmLogCriteria,
    check_columns,
    check_rpc_name,
)
from tracelake.catalogue.evm_columns import EVM_KEYS, EVM_OPTIONAL_COLUMNS, EVM_TABLES, EvmTable, evm_columns
from tracelake.catalogue.spec import (
    WORKERS,
    ConfigFieldError,
    JobInput,
    OperatorSpec,
    ResultColumns,
    Writes,
)
from tracelake.model.columns import DatasetColumns
from tracelake.model.dag import Schema

Seconds = Annotated[float, Meta(ge=0.05, le=3600)]


class RepairPermission(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A person's permission to follow one reorganisation of final blocks."""

    permit_id: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """Each is good for one write, whichever attempt makes it."""
    seconds: Annotated[float, Meta(ge=0)]
    """It ends so long after the claim."""
    from_block: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    """Files from this block on are read again; None: from the first one that changed."""


class BlockFollowerConfig(ChainDeviations, frozen=True, kw_only=True):
    tuning = frozenset(
        {
            "rpc",
            "finality_depth_blocks",
            "max_reorg_depth",
            "repair",
            "batch_blocks",
            "batch_size",
            "poll_min_seconds",
            "poll_max_seconds",
            "retry_seconds",
            "max_requests_per_second",
            "max_calls_per_second",
            "verify",
        }
    )

    chain_id: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    """The chain id that the nodes must report."""
    rpc: str = "default"
    """The name of the worker's RPC endpoints; all of its nodes are asked."""
    tables: Annotated[tuple[EvmTable, ...], Meta(min_length=1, max_length=3)] = EVM_TABLES
    """Output 0 is the first table, output 1 the second, and so on. `blocks` is always one of them."""
    columns: EvmColumnChoice | None = None
    """By table, the optional columns that it has after the others."""
    filter: EvmLogCriteria | None = None
    """Reads only logs of these contracts or with these topics, with the headers of all blocks."""
    start: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    """The first block of empty tables; without it, the head."""
    finality_depth_blocks: Annotated[int, Meta(ge=0, le=10_000)] = 64
    """Blocks this far below the head count as final."""
    max_reorg_depth: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """The most blocks that a reorganisation may replace; by default, those that are not final, and at least one."""
    unit_blocks: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """For live datasets: how many blocks a unit of their files has. The job has two more outputs then, of ranges
    without rows: what lies before the first block of the tables, and units that are final."""
    repair: RepairPermission | None = None
    """Set by `trace repair`: one reorganisation may change final blocks."""
    batch_blocks: Annotated[int, Meta(ge=1, le=10_000)] = 500
    """The most blocks in one write while it catches up."""
    batch_size: Annotated[int, Meta(ge=1, le=1000)] = 20
    """The most calls in one HTTP request."""
    poll_min_seconds: Seconds = 0.2
    """The shortest time between two looks at the head."""
    poll_max_seconds: Seconds = 15
    """The longest time between two looks at the head."""
    retry_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 300
    """How long no node, or no store, may answer before the attempt fails with the reason."""
    max_requests_per_second: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """Limit per node; a batch is one request."""
    max_calls_per_second: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """Limit per node; each call of a batch counts."""

    def __post_init__(self) -> None:
        check_rpc_name(self.rpc)
        if len(set(self.tables)) != len(self.tables):
            raise ConfigFieldError("tables", "it names a table twice")
        if "blocks" not in self.tables:
            raise ConfigFieldError("tables", "`blocks` must be one of them: the follower compares them with the nodes")
        self.check_roots(is_filtered=self.filter is not None)
        for table in EVM_TABLES:
            check_columns(self.tables, table, self._chosen_columns(table))
        if self.filter is not None:
            self.filter.check()
            self.check_numbers_of_some_logs()
            if set(self.tables) != {"blocks", "logs"}:
                raise ConfigFieldError(
                    "tables", "with a filter there are logs, and all blocks", "Use `tables: [blocks, logs]`."
                )
        if self.unit_blocks is not None and self.finality_depth_blocks < 1:
            raise ConfigFieldError("finality_depth_blocks", "with `unit_blocks` the newest block is never final: use 1")
        if self.repair is not None and self.unit_blocks is None:
            raise ConfigFieldError("repair", "it is for live datasets, which have `unit_blocks`")
        if self.poll_min_seconds > self.poll_max_seconds:
            raise ConfigFieldError("poll_min_seconds", "it must not be more than poll_max_seconds")

    def _chosen_columns(self, table: EvmTable) -> tuple[str, ...]:
        return () if self.columns is None else getattr(self.columns, table)

    def optional_columns(self, table: EvmTable) -> tuple[str, ...]:
        """The chosen ones, in the order of the table."""
        names = self._chosen_columns(table)
        return tuple(column.name for column in EVM_OPTIONAL_COLUMNS[table] if column.name in names)

    @property
    def seals_units(self) -> bool:
        return self.unit_blocks is not None

    @property
    def reorg_limit(self) -> int:
        return self.max_reorg_depth or max(1, self.finality_depth_blocks)

    def writes(self) -> Writes:
        tables = f"tables: [{', '.join(self.tables)}]"
        if self.unit_blocks is None:
            return Writes(len(self.tables), 1, tables, "tables")
        outputs = len(self.tables) + 2
        return Writes(outputs, outputs, f"{tables} with unit_blocks", "tables")

    def result(self, output_index: int, inputs: Sequence[JobInput]) -> ResultColumns | None:  # noqa: ARG002
        if output_index >= len(self.tables):
            return None
        table = self.tables[output_index]
        return ResultColumns(DatasetColumns(columns=evm_columns(table, self._chosen_columns(table))))

    def table(self, output_index: int) -> Schema | None:
        if output_index >= len(self.tables):
            return None
        name = self.tables[output_index]
        return table_schema(evm_columns(name, self._chosen_columns(name)), EVM_KEYS[name])


SPEC = OperatorSpec(
    "block_follower",
    BlockFollowerConfig,
    "Follows the head of an EVM chain into tables: `blocks`, `transactions`, `logs`; for `always_on`.",
    runtimes=WORKERS,
    fills_tables=True,
    trusted=True,
)
