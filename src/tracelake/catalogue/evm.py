"""Configs of the operators that read EVM chains."""

import re
from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta

from tracelake.catalogue.spec import WORKERS, ConfigFieldError, OperatorConfig, OperatorSpec, Writes

EvmTable = Literal["blocks", "transactions", "logs"]
EVM_TABLES: tuple[EvmTable, ...] = ("blocks", "transactions", "logs")
EVM_COLUMNS: dict[EvmTable, tuple[str, ...]] = {
    "blocks": (
        "block_hash", "parent_hash", "author", "block_number", "gas_used", "extra_data", "timestamp",
        "base_fee_per_gas", "chain_id",
    ),
    "transactions": (
        "block_number", "transaction_index", "transaction_hash", "nonce", "from_address", "to_address", "value_binary",
        "value_string", "value_f64", "input", "gas_limit", "gas_used", "gas_price", "transaction_type",
        "max_priority_fee_per_gas", "max_fee_per_gas", "success", "n_input_bytes", "n_input_zero_bytes",
        "n_input_nonzero_bytes", "chain_id",
    ),
    "logs": (
        "block_number", "transaction_index", "log_index", "transaction_hash", "address", "topic0", "topic1", "topic2",
        "topic3", "data", "chain_id",
    ),
}  # fmt: skip
"""The columns of each table, which filters of inputs may name."""
_RPC_NAME = re.compile("[a-z][a-z0-9_]{0,62}")


class EvmIngestConfig(OperatorConfig, frozen=True, kw_only=True):
    chain_id: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    """The chain id that the nodes must report."""
    rpc: str = "default"
    """The name of one of the worker's RPC endpoints; not an address, since that may hold a key."""
    tables: Annotated[tuple[EvmTable, ...], Meta(min_length=1, max_length=3)] = EVM_TABLES
    """Output 0 is the first table, output 1 the second, and so on."""
    chunk_blocks: Annotated[int, Meta(ge=1, le=100_000)] = 250
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
        if not _RPC_NAME.fullmatch(self.rpc):  # never repeated in the message: an address may hold a key
            raise ConfigFieldError(
                "rpc",
                "it must be a name like `archive`, not an address: addresses go to TRACE_RPC_<NAME> or HOME/rpc.toml,"
                " never into a DAG",
            )
        if len(set(self.tables)) != len(self.tables):
            raise ValueError("`tables` names a table twice")

    def columns(self, output_index: int) -> tuple[str, ...] | None:
        return EVM_COLUMNS[self.tables[output_index]] if output_index < len(self.tables) else None

    def writes(self) -> Writes:
        chosen_tables = self.tables != EVM_TABLES
        # A table without an output is not written.
        return Writes(len(self.tables), 0, f"tables: [{', '.join(self.tables)}]" if chosen_tables else "", "tables")


SPEC = OperatorSpec(
    "evm_ingest",
    EvmIngestConfig,
    "Reads a range of blocks of an EVM chain by JSON-RPC: `blocks`, `transactions`, `logs`.",
    runtimes=WORKERS,
    output_storage="s3",
    only_files=True,
    trusted=True,
)
ALIAS = replace(SPEC, name="cryo_ingest", summary="An alias of `evm_ingest`.")
