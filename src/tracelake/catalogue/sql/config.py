"""The config of `spark_sql`. Reading it, at deploy and in the worker, passes the query through the gate."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tracelake.catalogue.spec import WORKERS, ConfigFieldError, OperatorConfig, OperatorSpec, ResultColumns, Writes
from tracelake.catalogue.sql.findings import MAX_LENGTH, SqlRefusedError

if TYPE_CHECKING:
    from tracelake.catalogue.sql.gate import GatedQuery

_COLUMN = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
Column = Annotated[str, Meta(pattern=_COLUMN)]


class SparkSqlConfig(OperatorConfig, frozen=True, kw_only=True):
    query: Annotated[str, Meta(min_length=1, max_length=MAX_LENGTH)]
    """One SELECT."""
    inputs: dict[Annotated[str, Meta(pattern=_COLUMN)], Annotated[int, Meta(ge=0, le=63)]] = {}
    """The names of inputs in the query, with their index in the job; without it, the names of their datasets."""
    order_by: Annotated[list[Column], Meta(max_length=32)] | None = None
    """Rows of a file are sorted by these; by default by `block_number` if there is such a column."""
    files: Annotated[int, Meta(ge=1, le=64)] | None = None
    """The largest number of files; by default one if little was read, and more if much was."""
    unique: Annotated[list[Column], Meta(max_length=32)] = []
    """The task fails if two of its rows have the same values in these columns."""

    def __post_init__(self) -> None:
        if len({name.lower() for name in self.inputs}) != len(self.inputs):
            raise ConfigFieldError("inputs", "two names differ in capital letters alone", "Rename one of them.")
        try:
            self.gated()
        except SqlRefusedError as error:
            raise ConfigFieldError("query", str(error.finding), error.finding.suggestion) from None

    def gated(self, dataset_names: Sequence[str] | None = None) -> "GatedQuery":
        """The query as written anew for Spark. Without names of datasets, the names that it reads are not checked."""
        # The SQL parser is slow to import, and most commands see no query.
        from tracelake.catalogue.sql.gate import gate

        if self.inputs:
            return gate(self.query, frozenset(name.lower() for name in self.inputs))
        return gate(self.query, None if dataset_names is None else frozenset(name.lower() for name in dataset_names))

    def check_inputs(self, names: Sequence[str | None]) -> None:
        """Checks that the query reads inputs that the job has. An input without a name needs one in `inputs`."""
        for name, index in self.inputs.items():
            if index >= len(names):
                message = f"`{name}` is input {index}, and the job has {len(names)}, counted from 0"
                raise ConfigFieldError("inputs", message)
        try:
            self.gated([name for name in names if name is not None])
        except SqlRefusedError as error:
            hint = error.finding.suggestion
            if None in names:
                index = names.index(None)
                hint = f"Input {index} is not a dataset: name it with `inputs: {{name: {index}}}`."
            raise ConfigFieldError("query", str(error.finding), hint) from None

    def writes(self) -> Writes:
        return Writes(1)

    def result(self) -> ResultColumns:
        query = self.gated()
        places = {name: f"line {line}, column {column} of the query" for name, line, column in query.columns}
        return ResultColumns(places, query.names_all_columns, "query")

    def columns(self, output_index: int) -> list[str] | None:  # noqa: ARG002 - there is one output
        result = self.result()
        return list(result.places) if result.complete else None


SPEC = OperatorSpec(
    "spark_sql",
    SparkSqlConfig,
    "Runs a SELECT over its inputs and writes the result.",
    runtimes=WORKERS,
    output_storage="s3",
)
