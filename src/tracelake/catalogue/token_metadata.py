"""The config of `token_metadata`, and the columns that it writes."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from tracelake.catalogue.evm import ColumnName, check_rpc_name
from tracelake.catalogue.spec import WORKERS, JobInput, OperatorConfig, OperatorSpec, ResultColumns, Writes
from tracelake.model.columns import DatasetColumn, DatasetColumns


def _column(name: str, kind: str, description: str, *, nullable: bool = False) -> DatasetColumn:
    return DatasetColumn(name=name, type=kind, nullable=nullable, description=description)


TOKEN_COLUMNS = DatasetColumns(
    columns=(
        _column("block_number", "bigint", "First block of the unit in which the token occurs."),
        _column("token", "binary", "Address of the contract."),
        _column("symbol", "string", "Its symbol.", nullable=True),
        _column("decimals", "int", "Its decimals, 0 to 255.", nullable=True),
        _column("name", "string", "Its name.", nullable=True),
        _column("problem", "string", "Why a column is null; null if none is.", nullable=True),
        _column("read_at_block", "bigint", "Block whose state was asked; null if none was.", nullable=True),
        _column("chain_id", "decimal(20,0)", "Id of the chain."),
    )
)
KNOWN_COLUMNS = DatasetColumns(columns=(_column("token", "binary", "A token that was looked up."),))


class TokenMetadataConfig(OperatorConfig, frozen=True, kw_only=True):
    chain_id: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    """The chain id that the nodes must report."""
    rpc: str = "default"
    """The name of one of the worker's RPC endpoints; not an address, since that may hold a key."""
    column: ColumnName = "token"
    """The column of the first input that holds addresses of tokens, as 20 bytes."""
    at: Literal["unit", "latest"] = "unit"
    """The block whose state is asked: the last one of the unit, or the newest, for nodes without older state."""
    batch_size: Annotated[int, Meta(ge=1, le=1000)] = 60
    """The most calls in one HTTP request; a token takes three."""
    max_requests_per_second: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """Limit per node for a unit; a batch is one request."""
    max_calls_per_second: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """Limit per node for a unit; each call of a batch counts."""
    retry_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 180
    """How long nodes are retried without progress before the attempt fails."""

    def __post_init__(self) -> None:
        check_rpc_name(self.rpc)

    def writes(self) -> Writes:
        return Writes(2)

    def result(self, output_index: int, inputs: Sequence[JobInput]) -> ResultColumns:  # noqa: ARG002
        """Output 0: the tokens that are new. Output 1: all that are known, for the next unit."""
        return ResultColumns(KNOWN_COLUMNS if output_index else TOKEN_COLUMNS)


SPEC = OperatorSpec(
    "token_metadata",
    TokenMetadataConfig,
    "Looks up symbol, decimals and name of the tokens in its input by `eth_call`, each token once.",
    runtimes=WORKERS,
    output_storage="s3",
    windows="all",
    trusted=True,
    checks="rows",
)
