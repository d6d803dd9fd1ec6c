"""The gate as the service uses it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tracelake.query.gate.batch import CheckedBatchQuery
from tracelake.query.gate.parameters import QueryParameter
from tracelake.query.pruning import SimpleFilter

BoundScalar = bool | int | float | str | bytes | None
BoundValue = BoundScalar | Sequence[BoundScalar]
Columns = Mapping[str, str]
"""Names of columns with DuckDB's types of them, in their order."""


class GateResult(Protocol):
    """A query that passed the gate."""

    @property
    def sql(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, BoundValue]: ...
    @property
    def relations(self) -> frozenset[str]: ...
    @property
    def columns(self) -> Mapping[str, frozenset[str]]:
        """The columns of each relation whose values matter."""
        ...

    @property
    def filters(self) -> Mapping[str, Sequence[SimpleFilter]]: ...
    @property
    def fingerprint(self) -> str:
        """SHA-256 of the query without its constants."""
        ...


class SqlGate(Protocol):
    async def check(
        self, org: str, sql: str, parameters: Mapping[str, QueryParameter], relations: Mapping[str, Columns]
    ) -> GateResult:
        """Checks the query off the event loop. Raises TraceError with the position in the text."""
        ...

    async def check_batch(
        self, org: str, sql: str, parameters: Mapping[str, QueryParameter], relations: Sequence[str]
    ) -> CheckedBatchQuery:
        """The same for a batch query. Raises TraceError."""
        ...
