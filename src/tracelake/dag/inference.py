"""The columns of every output of a document, from sources to ends, and the mistakes that they reveal.

Columns come from the operators (`OperatorConfig.result`), from declared schemas, and for datasets of other DAGs from
what was recorded when they were deployed. What is unknown makes what is computed from it unknown, and never wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracelake.catalogue import CATALOGUE, OperatorConfig
from tracelake.catalogue.spec import JobInput, ResultColumns
from tracelake.catalogue.sql.columns.types import declared_type
from tracelake.dag.draft import Draft, InputDraft, JobDraft
from tracelake.dag.input_columns import SPARK_NAMES, check_by, check_previous
from tracelake.dag.jobs import locate
from tracelake.dag.kinds import DocumentPlace
from tracelake.dag.problems import one_of, shown
from tracelake.dag.results import check_files, check_result, check_stored_result
from tracelake.dag.where import check_names, check_values
from tracelake.model.columns import UNKNOWN_COLUMNS, UNKNOWN_TYPE, DatasetColumn, DatasetColumns
from tracelake.model.dag import OutputAddress, Schema

MAX_ANALYSED = 400_000
"""Characters of queries of a document that are analysed; the columns of further ones are unknown. Reading a document
stays within its time, whatever is in it."""
_SHOWN = 20


def declared_columns(schema: Schema) -> DatasetColumns:
    """The columns of a declared schema as queries see them."""
    return DatasetColumns(
        columns=tuple(
            DatasetColumn(name=column.name, type=str(declared_type(column)), nullable=column.nullable)
            for column in schema.columns
        )
    )


def previous_columns(item: InputDraft) -> DatasetColumns:
    """The columns that a job declares for its own output of the unit before."""
    columns = None if item.record is None else item.record.get("columns")
    if columns is None:
        return UNKNOWN_COLUMNS
    return DatasetColumns(
        columns=tuple(
            DatasetColumn(name=name, type=SPARK_NAMES.get(kind, kind) if isinstance(kind, str) else UNKNOWN_TYPE)
            for name, kind in columns.items()
        )
    )


@dataclass(slots=True)
class ColumnInference:
    draft: Draft
    outputs: dict[OutputAddress, DatasetColumns] = field(default_factory=dict)
    """Columns by output; an output that is not here has none that are known."""
    _analysed: int = 0
    _declared: dict[int, DatasetColumns] = field(default_factory=dict)

    def run(self, order: Sequence[str]) -> None:
        """Infer the outputs of jobs, upstream first. Jobs that are not named, as those on a cycle, are unknown."""
        for name in order:
            self._infer(name, self.draft.by_name[name])
        for entry in self.draft.publish.values():
            if entry.record.get("columns") and entry.writers and entry.owner is None:
                self._check_descriptions(entry.record.at("columns"), self.of_output(entry.writers[0]))

    def of_output(self, address: OutputAddress) -> DatasetColumns:
        """The columns that a reader of the output sees."""
        entry = self.draft.publishers.get(address)
        if entry is not None and (entry.buffered or entry.live):
            return UNKNOWN_COLUMNS if entry.schema is None else self._of_schema(entry.schema)
        inferred = self.outputs.get(address)
        if inferred is None and entry is not None and entry.schema is not None:
            return self._of_schema(entry.schema)
        return inferred or UNKNOWN_COLUMNS

    def of_rows(self, address: OutputAddress) -> DatasetColumns:
        """The columns of the rows that the job itself makes, before a table takes them."""
        entry = self.draft.publishers.get(address)
        buffered = entry is not None and entry.buffered
        return self.outputs.get(address, UNKNOWN_COLUMNS) if buffered else self.of_output(address)

    def _of_schema(self, schema: Schema) -> DatasetColumns:
        if id(schema) not in self._declared:
            self._declared[id(schema)] = declared_columns(schema)
        return self._declared[id(schema)]

    def of_input(self, item: InputDraft) -> DatasetColumns:
        """The columns that a reader of the input sees."""
        if item.is_previous:
            return previous_columns(item)
        if item.output is not None:
            return self.of_output(item.output)
        assert item.dataset is not None
        dataset = self.draft.surroundings.datasets[item.dataset]
        if dataset.schema is not None and (dataset.storage == "buffered" or dataset.columns is None):
            return self._of_schema(dataset.schema)
        return dataset.columns or UNKNOWN_COLUMNS

    def _infer(self, name: str, job: JobDraft) -> None:
        inputs = []
        for item in job.inputs:
            entry = None if item.output is None else self.draft.publishers.get(item.output)
            columns = self.of_input(item)
            self._check_where(item, columns)
            if job.record.get("operator") != "integrity_check":  # which reads blocks of files, whatever `by` says
                check_by(item, columns)
            inputs.append(JobInput(item.dataset if entry is None else entry.name, columns))
        operator = CATALOGUE.get(job.record.get("operator", ""))
        config = None if operator is None or job.only_emits else job.config(operator)
        if config is None or not self.is_affordable(getattr(config, "query", "")):
            return
        if len(inputs) != len(job.record.get("inputs") or ()):  # some are invalid, and their places unknown
            inputs = [JobInput(None)] * len(job.record.get("inputs") or ())
        for index in range(job.outputs or 0):
            address = OutputAddress(job=name, output_index=index)
            result = config.result(index, inputs)
            if result is None:
                continue
            self.outputs[address] = result.columns
            self._report(job, address, config, result)
            for item in job.inputs:
                if item.is_previous and item.output == address:
                    check_previous(item, result.columns)

    def is_affordable(self, query: str) -> bool:
        """Whether the query may be analysed too."""
        self._analysed += len(query)
        return self._analysed <= MAX_ANALYSED

    def _report(self, job: JobDraft, address: OutputAddress, config: OperatorConfig, result: ResultColumns) -> None:
        place = locate(job.record.at("config"), f".{result.field}", None)
        for finding in result.findings:
            message = f"{finding.message[:1].upper()}{finding.message[1:]}."
            place.problem_inside(finding.code, message, finding.suggestion, finding.offset)
        entry = self.draft.publishers.get(address)
        if entry is not None and entry.buffered and entry.schema is not None:
            check_result(entry.name, entry.schema, result, place)
        elif entry is not None and entry.record.get("storage") == "s3" and entry.schema is not None:
            columns = entry.record.values["schema"].values["columns"]
            check_files(entry.name, entry.schema, columns, result, place)
        check_stored_result(result, place)
        names = [column.name for column in result.columns.columns]
        for field_name, columns in config.named_columns().items() if result.columns.complete else ():
            for index, column in enumerate(columns):
                if column not in names:
                    where = locate(job.record.at("config"), f".{field_name}[{index}]", None)
                    hint = where.problems.did_you_mean(column, names) or f"It has {one_of(names[:_SHOWN])}."
                    where.problem("unknown_column", f"The result has no column {shown(column)}.", hint)

    def _check_where(self, item: InputDraft, columns: DatasetColumns) -> None:
        if item.where is None or self._has_schema(item):  # which was compared with it already
            return
        if columns.complete:
            check_names(item.where, [column.name for column in columns.columns])
        check_values(item.where, {column.name: column.type for column in columns.columns})

    def _has_schema(self, item: InputDraft) -> bool:
        if item.output is not None:
            entry = self.draft.publishers.get(item.output)
            return entry is not None and entry.schema is not None
        assert item.dataset is not None
        return self.draft.surroundings.datasets[item.dataset].schema is not None

    def _check_descriptions(self, place: DocumentPlace, columns: DatasetColumns) -> None:
        names = [column.name for column in columns.columns]
        for name, (key, _) in place.entries().items() if columns.complete else ():
            if name not in names:
                hint = key.problems.did_you_mean(name, names) or f"It has {one_of(names[:_SHOWN])}."
                key.problem("unknown_column", f"The dataset has no column {shown(name)}.", hint)
