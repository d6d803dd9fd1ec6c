"""Configs of the operators that read EVM chains."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Annotated, Literal

from msgspec import Meta, Struct

from tracelake.catalogue.evm_columns import EVM_INGEST_TABLES, EVM_OPTIONAL_COLUMNS, EvmIngestTable, evm_columns
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

_RPC_NAME = re.compile("[a-z][a-z0-9_]{0,62}")
ColumnName = Annotated[str, Meta(min_length=1, max_length=63)]


ChainKind = Literal["ethereum", "op_stack", "arbitrum", "polygon", "zksync", "cronos", "stable", "tempo"]


LogIndexChoice = Literal["strict", "renumber", "as_given"]
PhantomChoice = Literal["fail", "drop"]
MissingFieldChoice = Literal["fail", "null"]
VerifyChoice = Literal["hashes", "roots"]


@dataclass(frozen=True, slots=True)
class ChainPreset:
    """What a kind of chain sets, unless the job does."""

    log_index: LogIndexChoice = "strict"
    phantom_transactions: PhantomChoice = "fail"
    missing_fields: MissingFieldChoice = "fail"


CHAIN_PRESETS: dict[ChainKind, ChainPreset] = {
    "ethereum": ChainPreset(),
    "op_stack": ChainPreset(),
    "arbitrum": ChainPreset(),
    "polygon": ChainPreset(),
    "zksync": ChainPreset(),
    "cronos": ChainPreset(log_index="renumber", phantom_transactions="drop"),
    "stable": ChainPreset(log_index="renumber"),
    "tempo": ChainPreset(missing_fields="null"),
}


class ChainDeviations(OperatorConfig, frozen=True, kw_only=True):
    """In what a chain may differ from Ethereum: fields of every operator that reads blocks of one."""

    chain_kind: ChainKind = "ethereum"
    """The kind of chain: what the next three are unless they are set."""
    log_index: LogIndexChoice | None = None
    """Whether logs must be numbered from 0 without a gap, get their place in the block, or keep their numbers."""
    phantom_transactions: PhantomChoice | None = None
    """Transactions of a block without a receipt: an error of the node, or left out."""
    missing_fields: MissingFieldChoice | None = None
    """Value, input, gas or nonce missing from a transaction of a type beyond 4: an error, or null."""
    verify: VerifyChoice = "hashes"
    """Whether hashes in answers are compared with each other, or also computed, with all roots, from the content."""

    @property
    def preset(self) -> ChainPreset:
        """That of the kind of chain, with what the job sets itself."""
        kind = CHAIN_PRESETS[self.chain_kind]
        return ChainPreset(
            self.log_index or kind.log_index,
            self.phantom_transactions or kind.phantom_transactions,
            self.missing_fields or kind.missing_fields,
        )

    def check_roots(self, *, is_filtered: bool) -> None:
        """Raises ConfigFieldError if roots cannot be computed of what is read."""
        if self.verify != "roots":
            return
        if self.chain_kind != "ethereum" or self.preset != ChainPreset():
            raise ConfigFieldError(
                "verify",
                "roots are computed by the rules of Ethereum: it needs `chain_kind: ethereum` without exceptions",
                "Use `verify: hashes`, or leave it out.",
            )
        if is_filtered:
            raise ConfigFieldError(
                "verify",
                "`verify: roots` needs all logs of a block, and a filter reads some of them",
                "Use `verify: hashes`, or leave out the filter.",
            )

    def check_numbers_of_some_logs(self) -> None:
        """Raises ConfigFieldError if logs are renumbered, which a filter makes impossible."""
        if self.preset.log_index == "renumber":
            raise ConfigFieldError(
                "log_index" if self.log_index else "chain_kind",
                "`log_index: renumber` needs all logs of a block, and a filter reads some of them",
                "Use `log_index: as_given`.",
            )


class EvmColumnChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Names of optional columns, by table."""

    blocks: tuple[ColumnName, ...] = ()
    transactions: tuple[ColumnName, ...] = ()
    logs: tuple[ColumnName, ...] = ()
    traces: tuple[ColumnName, ...] = ()


Address = Annotated[str, Meta(pattern="^0x[0-9a-fA-F]{40}$")]
Topic = Annotated[str, Meta(pattern="^0x[0-9a-fA-F]{64}$")]
Topics = Annotated[tuple[Topic, ...], Meta(min_length=1, max_length=1000)]


class EvmLogCriteria(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Logs that have one of the addresses, and at each place one of its topics."""

    addresses: Annotated[tuple[Address, ...], Meta(max_length=1000)] = ()
    """Contracts; empty: any."""
    topics: Annotated[tuple[Topic | Topics | None, ...], Meta(max_length=4)] = ()
    """By place: a topic, a list of topics, or null for any."""

    def topic_choices(self) -> tuple[tuple[str, ...], ...]:
        """By place, the accepted ones; none: any."""
        return tuple(() if place is None else (place,) if isinstance(place, str) else place for place in self.topics)

    def check(self) -> None:
        """Raises ConfigFieldError if it takes every log, or says more than it needs to."""
        if not self.addresses and not any(self.topic_choices()):
            raise ConfigFieldError("filter", "it takes every log", "Name addresses or topics, or leave it out.")
        if self.topics and self.topics[-1] is None:
            raise ConfigFieldError("filter.topics", "the last topic is null, which means any", "Leave it out.")


class EvmLogFilter(EvmLogCriteria, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The logs that `evm_ingest` reads, with which blocks, and how many blocks go into a file."""

    blocks: Literal["with_logs", "all"] = "with_logs"
    """Of the table `blocks`: those with such a log, or all of them."""
    chunk_blocks: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    """Blocks whose logs go into one file."""


_USUAL_CHUNK = 250


def check_rpc_name(name: str) -> None:
    """Raises ConfigFieldError, which never repeats the name: it may be an address, and hold a key."""
    if not _RPC_NAME.fullmatch(name):
        raise ConfigFieldError(
            "rpc",
            "it must be a name like `archive`, not an address: addresses go to TRACE_RPC_<NAME> or HOME/rpc.toml,"
            " never into a DAG",
        )


def check_columns(tables: Collection[EvmIngestTable], table: EvmIngestTable, names: Sequence[str]) -> None:
    """Raises ConfigFieldError if a name is not that of an optional column of the table."""
    if names and table not in tables:
        raise ConfigFieldError(
            f"columns.{table}", f"`{table}` is none of the `tables`, so it has no columns", f"Leave out `{table}`."
        )
    optional = [column.name for column in EVM_OPTIONAL_COLUMNS[table]]
    always = [column.name for column in evm_columns(table)]
    for place, name in enumerate(names):
        field = f"columns.{table}[{place}]"
        if name in names[:place]:
            raise ConfigFieldError(field, f"`{name}` is there twice", "Leave one of them out.")
        if name in always:
            raise ConfigFieldError(field, f"`{table}` has `{name}` in any case", "Leave it out.")
        if name not in optional:
            nearest = get_close_matches(name.lower(), optional, 1)
            hint = f"Did you mean `{nearest[0]}`?" if nearest else f"There are {', '.join(optional)}."
            raise ConfigFieldError(field, f"`{table}` has no optional column {name!a}", hint)


class EvmIngestConfig(ChainDeviations, frozen=True, kw_only=True):
    tuning = frozenset(
        {
            "rpc",
            "chunk_blocks",
            "batch_size",
            "confirmations",
            "max_requests_per_second",
            "max_calls_per_second",
            "retry_seconds",
            "verify",
        }
    )

    chain_id: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    """The chain id that the nodes must report."""
    rpc: str = "default"
    """The name of one of the worker's RPC endpoints; not an address, since that may hold a key."""
    tables: Annotated[tuple[EvmIngestTable, ...], Meta(min_length=1, max_length=4)] = EVM_INGEST_TABLES
    """Output 0 is the first table, output 1 the second, and so on. A table without an output is not read."""
    columns: EvmColumnChoice | None = None
    """By table, the optional columns that its files have after the others."""
    filter: EvmLogFilter | None = None
    """Reads only logs of these contracts or with these topics, and the blocks that they are in."""
    chunk_blocks: Annotated[int, Meta(ge=1, le=100_000)] = _USUAL_CHUNK
    """Blocks that are read together and go into one file."""
    batch_size: Annotated[int, Meta(ge=1, le=1000)] = 20
    """The most calls in one HTTP request."""
    confirmations: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """The number of blocks that must follow the last block of the range."""
    max_requests_per_second: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """Limit per node for all Spark tasks of a unit together; a batch is one request."""
    max_calls_per_second: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """Limit per node for all Spark tasks of a unit together; each call of a batch counts."""
    retry_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 180
    """How long nodes are retried without progress before the attempt fails."""

    def __post_init__(self) -> None:
        check_rpc_name(self.rpc)
        if len(set(self.tables)) != len(self.tables):
            raise ValueError("`tables` names a table twice")
        self.check_roots(is_filtered=self.filter is not None)
        for table in EVM_INGEST_TABLES:
            check_columns(self.tables, table, self._chosen_columns(table))
        if self.filter is not None:
            self._check_filter(self.filter)

    def _check_filter(self, log_filter: EvmLogFilter) -> None:
        log_filter.check()
        if not {"logs"} <= {*self.tables} <= {"logs", "blocks"}:
            raise ConfigFieldError(
                "tables", "with a filter there are logs, and the blocks that they are in", "Use `tables: [logs]`."
            )
        self.check_numbers_of_some_logs()
        if self.chunk_blocks != _USUAL_CHUNK:
            raise ConfigFieldError(
                "chunk_blocks", "with a filter, chunks are those of the filter", "Use `filter: {chunk_blocks: ...}`."
            )

    @property
    def blocks_per_chunk(self) -> int:
        return self.chunk_blocks if self.filter is None else self.filter.chunk_blocks

    def _chosen_columns(self, table: EvmIngestTable) -> tuple[str, ...]:
        return () if self.columns is None else getattr(self.columns, table)

    def optional_columns(self, table: EvmIngestTable) -> tuple[str, ...]:
        """The chosen ones, in the order of the files."""
        names = self._chosen_columns(table)
        return tuple(column.name for column in EVM_OPTIONAL_COLUMNS[table] if column.name in names)

    def result(self, output_index: int, inputs: Sequence[JobInput]) -> ResultColumns | None:  # noqa: ARG002
        if output_index >= len(self.tables):
            return None
        table = self.tables[output_index]
        return ResultColumns(DatasetColumns(columns=evm_columns(table, self._chosen_columns(table))))

    def writes(self) -> Writes:
        chosen_tables = self.tables != EVM_INGEST_TABLES
        # A table without an output is not written.
        return Writes(len(self.tables), 0, f"tables: [{', '.join(self.tables)}]" if chosen_tables else "", "tables")


SPEC = OperatorSpec(
    "evm_ingest",
    EvmIngestConfig,
    "Reads a range of blocks of an EVM chain by JSON-RPC: `blocks`, `transactions`, `logs`, `traces`.",
    runtimes=WORKERS,
    output_storage="s3",
    only_files=True,
    trusted=True,
    checks="rows",
)
ALIAS = replace(SPEC, name="cryo_ingest", summary="An alias of `evm_ingest`.")
