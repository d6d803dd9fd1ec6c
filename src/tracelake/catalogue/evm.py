"""Configs of the operators that read EVM chains."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta

from tracelake.catalogue.spec import (
    WORKERS,
    ConfigFieldError,
    JobInput,
    OperatorConfig,
    OperatorSpec,
    ResultColumns,
    Writes,
)
from tracelake.model.columns import DatasetColumn, DatasetColumns

EvmTable = Literal["blocks", "transactions", "logs"]
EVM_TABLES: tuple[EvmTable, ...] = ("blocks", "transactions", "logs")
_BYTES, _NUMBER, _LARGE = "binary", "bigint", "decimal(20,0)"


def _column(name: str, kind: str, description: str, *, nullable: bool = False) -> DatasetColumn:
    return DatasetColumn(name=name, type=kind, nullable=nullable, description=description)


EVM_COLUMNS: dict[EvmTable, tuple[DatasetColumn, ...]] = {
    "blocks": (
        _column("block_hash", _BYTES, "Hash of the block."),
        _column("parent_hash", _BYTES, "Hash of the block before it."),
        _column("author", _BYTES, "Address that received the reward.", nullable=True),
        _column("block_number", _NUMBER, "Number of the block."),
        _column("gas_used", _LARGE, "Gas of all its transactions.", nullable=True),
        _column("extra_data", _BYTES, "Free bytes of its author.", nullable=True),
        _column("timestamp", _NUMBER, "Seconds since 1970, UTC."),
        _column("base_fee_per_gas", _LARGE, "Wei; null before EIP-1559.", nullable=True),
        _column("chain_id", _LARGE, "Id of the chain."),
    ),
    "transactions": (
        _column("block_number", _NUMBER, "Number of its block."),
        _column("transaction_index", _LARGE, "Place in the block, from 0."),
        _column("transaction_hash", _BYTES, "Hash of the transaction."),
        _column("nonce", _LARGE, "Number of the sender's transactions before it.", nullable=True),
        _column("from_address", _BYTES, "Sender.", nullable=True),
        _column("to_address", _BYTES, "Receiver; null if it makes a contract.", nullable=True),
        _column("value_binary", _BYTES, "Wei, as 32 bytes.", nullable=True),
        _column("value_string", "string", "Wei, as decimal text.", nullable=True),
        _column("value_f64", "double", "Wei, rounded.", nullable=True),
        _column("input", _BYTES, "Data of the call.", nullable=True),
        _column("gas_limit", _LARGE, "Most gas it may use.", nullable=True),
        _column("gas_used", _LARGE, "Gas it used.", nullable=True),
        _column("gas_price", _LARGE, "Wei for each gas.", nullable=True),
        _column("transaction_type", _NUMBER, "Type of EIP-2718.", nullable=True),
        _column("max_priority_fee_per_gas", _LARGE, "Wei; null before EIP-1559.", nullable=True),
        _column("max_fee_per_gas", _LARGE, "Wei; null before EIP-1559.", nullable=True),
        _column("success", "boolean", "False if it was reverted.", nullable=True),
        _column("n_input_bytes", _NUMBER, "Bytes of `input`.", nullable=True),
        _column("n_input_zero_bytes", _NUMBER, "Those that are zero.", nullable=True),
        _column("n_input_nonzero_bytes", _NUMBER, "Those that are not.", nullable=True),
        _column("chain_id", _LARGE, "Id of the chain."),
    ),
    "logs": (
        _column("block_number", _NUMBER, "Number of its block."),
        _column("transaction_index", _NUMBER, "Place of its transaction in the block."),
        _column("log_index", _NUMBER, "Place in the block, from 0."),
        _column("transaction_hash", _BYTES, "Hash of its transaction."),
        _column("address", _BYTES, "Contract that emitted it."),
        _column("topic0", _BYTES, "Hash of the event's signature.", nullable=True),
        _column("topic1", _BYTES, "First indexed parameter.", nullable=True),
        _column("topic2", _BYTES, "Second indexed parameter.", nullable=True),
        _column("topic3", _BYTES, "Third indexed parameter.", nullable=True),
        _column("data", _BYTES, "Parameters that are not indexed.", nullable=True),
        _column("chain_id", _LARGE, "Id of the chain."),
    ),
}
"""The columns of each table as queries see them: Spark reads unsigned numbers as the next larger type."""
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

    def result(self, output_index: int, inputs: Sequence[JobInput]) -> ResultColumns | None:  # noqa: ARG002
        if output_index >= len(self.tables):
            return None
        return ResultColumns(DatasetColumns(columns=EVM_COLUMNS[self.tables[output_index]]))

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
    checks="rows",
)
ALIAS = replace(SPEC, name="cryo_ingest", summary="An alias of `evm_ingest`.")
