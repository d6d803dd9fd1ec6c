"""The config of `spark_sql`. Reading it, at deploy and in the worker, passes the query through the gate."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tracelake.catalogue.spec import (
    WORKERS,
    ConfigFieldError,
    JobInput,
    OperatorConfig,
    OperatorSpec,
    ResultColumns,
    ResultFinding,
    Writes,
)
from tracelake.catalogue.sql.columns.types import parse_type
from tracelake.catalogue.sql.findings import MAX_LENGTH, SqlRefusedError, offset_of
from tracelake.model.columns import UNKNOWN_TYPE, DatasetColumn, DatasetColumns

if TYPE_CHECKING:
    from tracelake.catalogue.sql.columns.scopes import SqlRelation
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
            raise self._refused(error) from None

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
            raise self._refused(error, hint) from None

    def _refused(self, error: SqlRefusedError, hint: str | None = None) -> ConfigFieldError:
        finding = error.finding
        text = finding.suggestion if hint is None else hint
        return ConfigFieldError("query", str(finding), text, offset_of(self.query, finding.line, finding.column))

    @property
    def joins_inputs(self) -> bool:
        return True

    def writes(self) -> Writes:
        return Writes(1)

    def result(self, output_index: int, inputs: Sequence[JobInput]) -> ResultColumns:  # noqa: ARG002
        from tracelake.catalogue.sql.gate import analyse

        relations = {name.lower(): _relation(item) for name, item in self._named(inputs).items()}
        analysed = analyse(self.query, relations)
        columns = tuple(
            DatasetColumn(name=column.name, type=str(column.type) if column.type.is_known else UNKNOWN_TYPE)
            for column in analysed.relation.columns
            if column.name is not None
        )
        places = tuple((name, offset_of(self.query, line, place)) for name, line, place in self.gated().columns)
        findings = tuple(
            ResultFinding(finding.code, finding.message, finding.offset, finding.suggestion)
            for finding in analysed.findings
        )
        result_columns = DatasetColumns(columns=columns, complete=analysed.relation.names_are_known)
        return ResultColumns(result_columns, "query", places, findings)

    def _named(self, inputs: Sequence[JobInput]) -> dict[str, JobInput]:
        """Inputs by their names in the query; those that have one name in common are left out."""
        if self.inputs:
            return {name: inputs[index] for name, index in self.inputs.items() if index < len(inputs)}
        names = [item.name.lower() for item in inputs if item.name is not None]
        return {item.name: item for item in inputs if item.name is not None and names.count(item.name.lower()) == 1}

    def named_columns(self) -> dict[str, list[str]]:
        return {"order_by": self.order_by or [], "unique": self.unique}


def _relation(item: JobInput) -> "SqlRelation":
    from tracelake.catalogue.sql.columns.scopes import RelationColumn, SqlRelation

    columns = (RelationColumn(column.name, parse_type(column.type)) for column in item.columns.columns)
    return SqlRelation(tuple(columns), item.columns.complete)


SPEC = OperatorSpec(
    "spark_sql",
    SparkSqlConfig,
    "Runs a SELECT over its inputs and writes the result.",
    runtimes=WORKERS,
    output_storage="s3",
    windows="all",
    checks="sql",
)
