"""Configs of the operators that read EVM chains."""

from typing import Annotated, Literal

from msgspec import Meta

from tracelake.catalogue.spec import OperatorConfig

EvmTable = Literal["blocks", "transactions", "logs"]
EVM_TABLES: tuple[EvmTable, ...] = ("blocks", "transactions", "logs")


class EvmIngestConfig(OperatorConfig, frozen=True, kw_only=True):
    chain_id: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    """What the nodes must say they are."""
    rpc: Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,62}$")] = "default"
    """Which of the worker's RPC endpoints."""
    tables: Annotated[tuple[EvmTable, ...], Meta(min_length=1, max_length=3)] = EVM_TABLES
    """Output 0 is the first of them, output 1 the second, ..."""
    chunk_blocks: Annotated[int, Meta(ge=1, le=100_000)] = 250
    """Blocks that are read together, and that go into one file."""
    batch_size: Annotated[int, Meta(ge=1, le=1000)] = 20
    """Calls in one HTTP request, at most."""
    confirmations: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """How many blocks must follow the last one of the range."""
    max_requests_per_second: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """To each node, by all Spark tasks of a unit together; a batch is one request."""
    retry_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 180
    """How long the nodes are asked again for what they do not give; then the attempt fails, to be retried."""

    def __post_init__(self) -> None:
        if len(set(self.tables)) != len(self.tables):
            raise ValueError("`tables` names a table twice")
