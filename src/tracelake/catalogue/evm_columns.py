"""The columns that `evm_ingest` writes: those of every job, and those that `columns` of its config switches on."""

from collections.abc import Collection
from typing import Literal

from tracelake.model.columns import DatasetColumn

EvmTable = Literal["blocks", "transactions", "logs"]
EvmIngestTable = Literal["blocks", "transactions", "logs", "traces"]
EVM_TABLES: tuple[EvmTable, ...] = ("blocks", "transactions", "logs")
"""What every node has."""
EVM_INGEST_TABLES: tuple[EvmIngestTable, ...] = (*EVM_TABLES, "traces")
_BYTES, _NUMBER, _LARGE, _AMOUNT = "binary", "bigint", "decimal(20,0)", "decimal(38,0)"


def _column(name: str, kind: str, description: str, *, nullable: bool = False) -> DatasetColumn:
    return DatasetColumn(name=name, type=kind, nullable=nullable, description=description)


EVM_COLUMNS: dict[EvmIngestTable, tuple[DatasetColumn, ...]] = {
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
    "traces": (
        _column("block_number", _NUMBER, "Number of its block."),
        _column("transaction_index", _NUMBER, "Place of its transaction in the block.", nullable=True),
        _column("transaction_hash", _BYTES, "Hash of its transaction; null for rewards.", nullable=True),
        _column("trace_index", _NUMBER, "Place in the block, from 0."),
        _column("trace_address", "array<bigint>", "Place in the tree of calls; empty for the transaction itself."),
        _column("subtraces", _NUMBER, "Calls directly inside it."),
        _column("trace_type", "string", "`call`, `create`, `selfdestruct` or `reward`."),
        _column("call_type", "string", "`call`, `delegatecall`, `create2`, ...", nullable=True),
        _column("reward_type", "string", "`block` or `uncle`.", nullable=True),
        _column("from_address", _BYTES, "Caller.", nullable=True),
        _column("to_address", _BYTES, "Callee, new contract, or who gets the value.", nullable=True),
        _column("value_binary", _BYTES, "Wei, as 32 bytes.", nullable=True),
        _column("value_string", "string", "Wei, as decimal text.", nullable=True),
        _column("value_f64", "double", "Wei, rounded.", nullable=True),
        _column("gas", _LARGE, "Most gas it may use.", nullable=True),
        _column("gas_used", _LARGE, "Gas it used.", nullable=True),
        _column("input", _BYTES, "Data of the call, or code that creates a contract.", nullable=True),
        _column("output", _BYTES, "Answer, or code of the new contract.", nullable=True),
        _column("error", "string", "Why it failed.", nullable=True),
        _column("success", "boolean", "False if it, or a call around it, failed."),
        _column("chain_id", _LARGE, "Id of the chain."),
    ),
}
"""The columns of each table as queries see them: Spark reads unsigned numbers as the next larger type."""


def _optional(name: str, kind: str, description: str) -> DatasetColumn:
    """Null where a chain, or a block from before a fork, has no such field."""
    return _column(name, kind, description, nullable=True)


EVM_KEYS: dict[EvmTable, tuple[str, ...]] = {
    "blocks": ("block_number",),
    "transactions": ("block_number", "transaction_index"),
    "logs": ("block_number", "log_index"),
}
"""What tells the rows of each table apart; the position of a row comes first."""

EVM_OPTIONAL_COLUMNS: dict[EvmIngestTable, tuple[DatasetColumn, ...]] = {
    "blocks": (
        _optional("gas_limit", _LARGE, "Most gas its transactions may use."),
        _optional("size", _LARGE, "Bytes of the block."),
        _optional("state_root", _BYTES, "Root of the state after it."),
        _optional("transactions_root", _BYTES, "Root of its transactions."),
        _optional("receipts_root", _BYTES, "Root of its receipts."),
        _optional("uncles_hash", _BYTES, "Hash of its uncles."),
        _optional("logs_bloom", _BYTES, "Bloom filter of its logs, 256 bytes."),
        _optional("difficulty", _LARGE, "Difficulty; 0 since the merge."),
        _optional("total_difficulty", _AMOUNT, "Difficulty of the chain up to it."),
        _optional("mix_hash", _BYTES, "Proof of work; since the merge, the random value of the beacon chain."),
        _optional("nonce", _BYTES, "Proof of work, 8 bytes."),
        _optional("blob_gas_used", _LARGE, "Blob gas of its transactions (EIP-4844)."),
        _optional("excess_blob_gas", _LARGE, "Determines the price of blob gas (EIP-4844)."),
        _optional("parent_beacon_block_root", _BYTES, "Root of the beacon block before it (EIP-4788)."),
        _optional("requests_hash", _BYTES, "Hash of its requests to the consensus layer (EIP-7685)."),
        _optional("withdrawals_root", _BYTES, "Root of its withdrawals (EIP-4895)."),
        _optional(
            "withdrawals",
            "array<struct<index:bigint,validator_index:bigint,address:binary,amount:bigint>>",
            "Withdrawals of validators (EIP-4895); amounts in Gwei.",
        ),
        _optional("l1_block_number", _NUMBER, "Block of L1 that it knows of (Arbitrum)."),
        _optional("l1_batch_number", _LARGE, "Batch in which it goes to L1 (zkSync)."),
    ),
    "transactions": (
        _optional("block_hash", _BYTES, "Hash of its block."),
        _optional("timestamp", _NUMBER, "Seconds since 1970 of its block."),
        _optional("contract_address", _BYTES, "Contract that it made."),
        _optional("cumulative_gas_used", _LARGE, "Gas of the block up to and with it."),
        _optional("effective_gas_price", _LARGE, "Wei for each gas that it paid, by its receipt."),
        _optional("v", _LARGE, "Of the signature."),
        _optional("r", _BYTES, "Of the signature, 32 bytes."),
        _optional("s", _BYTES, "Of the signature, 32 bytes."),
        _optional(
            "access_list",
            "array<struct<address:binary,storage_keys:array<binary>>>",
            "State that it names beforehand (EIP-2930).",
        ),
        _optional("max_fee_per_blob_gas", _LARGE, "Wei (EIP-4844)."),
        _optional("blob_versioned_hashes", "array<binary>", "Its blobs (EIP-4844)."),
        _optional("blob_gas_used", _LARGE, "Blob gas it used (EIP-4844)."),
        _optional("blob_gas_price", _LARGE, "Wei for each blob gas that it paid (EIP-4844)."),
        _optional(
            "authorization_list",
            "array<struct<chain_id:bigint,address:binary,nonce:bigint,y_parity:bigint,r:binary,s:binary>>",
            "Accounts that delegate to code (EIP-7702).",
        ),
        _optional("l1_fee", _AMOUNT, "Wei for its data on L1 (OP stack, Scroll)."),
        _optional("l1_gas_used", _LARGE, "Gas of L1 for its data (OP stack)."),
        _optional("l1_gas_price", _LARGE, "Price of gas on L1, in wei (OP stack)."),
        _optional("l1_fee_scalar", "string", "Factor of the fee, as decimal text (OP stack before Ecotone)."),
        _optional("l1_base_fee_scalar", _LARGE, "Factor of the base fee of L1 (OP stack since Ecotone)."),
        _optional("l1_blob_base_fee", _LARGE, "Price of blob gas on L1, in wei (OP stack since Ecotone)."),
        _optional("l1_blob_base_fee_scalar", _LARGE, "Factor of the blob fee of L1 (OP stack since Ecotone)."),
        _optional("operator_fee_scalar", _LARGE, "Factor of the operator's fee (OP stack since Isthmus)."),
        _optional("operator_fee_constant", _LARGE, "Fixed part of the operator's fee (OP stack since Isthmus)."),
        _optional("source_hash", _BYTES, "Where a deposit comes from (OP stack, type 0x7e)."),
        _optional("mint", _AMOUNT, "Wei that a deposit creates (OP stack, type 0x7e)."),
        _optional("is_system_tx", "boolean", "A deposit of the system (OP stack, type 0x7e)."),
        _optional("deposit_nonce", _LARGE, "Nonce of a deposit's sender (OP stack, type 0x7e)."),
        _optional("gas_used_for_l1", _LARGE, "Part of its gas that pays for L1 (Arbitrum)."),
        _optional("l1_block_number", _NUMBER, "Block of L1 that it saw (Arbitrum)."),
        _optional("l1_batch_number", _LARGE, "Batch in which it goes to L1 (zkSync)."),
        _optional("l1_batch_tx_index", _LARGE, "Place in that batch (zkSync)."),
    ),
    "logs": (
        _optional("block_hash", _BYTES, "Hash of its block."),
        _optional("timestamp", _NUMBER, "Seconds since 1970 of its block."),
        _optional("n_data_bytes", _NUMBER, "Bytes of `data`."),
    ),
    "traces": (
        _optional("block_hash", _BYTES, "Hash of its block."),
        _optional("timestamp", _NUMBER, "Seconds since 1970 of its block."),
    ),
}
"""What `columns` of the config may name. They follow the others, in this order."""


def evm_columns(table: EvmIngestTable, names: Collection[str] = ()) -> tuple[DatasetColumn, ...]:
    """The columns of a table, with these of the optional ones."""
    optional = (column for column in EVM_OPTIONAL_COLUMNS[table] if column.name in names)
    return (*EVM_COLUMNS[table], *optional)


def find_optional_column(name: str, names: Collection[str]) -> EvmIngestTable | None:
    """The table that can have the column, if all others of the table are among these names."""
    for table, columns in EVM_OPTIONAL_COLUMNS.items():
        has_column = any(column.name == name for column in columns)
        if has_column and all(column.name in names for column in EVM_COLUMNS[table]):
            return table
    return None
