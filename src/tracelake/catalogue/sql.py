"""The config of `spark_sql`. Its query passes the gate when the config is read, at deploy as in the worker."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tracelake.catalogue.spec import ConfigFieldError, OperatorConfig, ResultColumns
from tracelake.catalogue.sql_findings import MAX_LENGTH, SqlRefusedError

if TYPE_CHECKING:
    from tracelake.catalogue.sql_gate import GatedQuery

_COLUMN = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
Column = Annotated[str, Meta(pattern=_COLUMN)]


class SparkSqlConfig(OperatorConfig, frozen=True, kw_only=True):
    query: Annotated[str, Meta(min_length=1, max_length=MAX_LENGTH)]
    """One SELECT."""
    inputs: dict[Annotated[str, Meta(pattern=_COLUMN)], Annotated[int, Meta(ge=0, le=63)]] = {}
    """Names of the inputs in the query, by their place in the job; without it, they are called like their datasets."""
    order_by: Annotated[list[Column], Meta(max_length=32)] | None = None
    """Rows of a file are sorted by these; `block_number` where nothing is said and there is one."""
    files: Annotated[int, Meta(ge=1, le=64)] | None = None
    """At most so many files; without it, one if little was read, and more if much was."""
    unique: Annotated[list[Column], Meta(max_length=32)] = []
    """No two rows of a task may agree in these; the task fails otherwise."""

    def __post_init__(self) -> None:
        if len({name.lower() for name in self.inputs}) != len(self.inputs):
            raise ConfigFieldError("inputs", "two names differ in capital letters alone", "Rename one of them.")
        try:
            self.gated()
        except SqlRefusedError as error:
            raise ConfigFieldError("query", str(error.finding), error.finding.suggestion) from None

    def gated(self, dataset_names: Sequence[str] | None = None) -> "GatedQuery":
        """The query as Spark may have it. Without names of datasets, what it reads by such a name is not checked."""
        # The parser of SQL takes a moment to load, and commands that see no query do without.
        from tracelake.catalogue.sql_gate import gate

        if self.inputs:
            return gate(self.query, frozenset(name.lower() for name in self.inputs))
        return gate(self.query, None if dataset_names is None else frozenset(name.lower() for name in dataset_names))


def check_inputs(config: SparkSqlConfig, names: Sequence[str | None]) -> None:
    """That the query reads inputs that the job has. An input without a name needs one in `inputs`."""
    for name, index in config.inputs.items():
        if index >= len(names):
            message = f"`{name}` is input {index}, and the job has {len(names)}, counted from 0"
            raise ConfigFieldError("inputs", message)
    try:
        config.gated([name for name in names if name is not None])
    except SqlRefusedError as error:
        nameless = [index for index, name in enumerate(names) if name is None]
        hint = f"Input {nameless[0]} is no dataset: name it with `inputs: {{name: {nameless[0]}}}`." if nameless else ""
        raise ConfigFieldError("query", str(error.finding), hint or error.finding.suggestion) from None


def result_columns(config: SparkSqlConfig) -> ResultColumns:
    query = config.gated()
    places = {name: f"line {line}, column {column} of the query" for name, line, column in query.columns}
    return ResultColumns(places, query.names_all_columns, "query")
