"""Evaluates the checks of one attempt.

Checks of single rows and the number of rows are one pass over an output. The others are a query each. Rows are looked
for only where a check failed. A check that cannot be evaluated, because a column is missing or a query divides by zero,
fails; if Spark itself fails, so does the attempt, and another one may succeed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracelake.catalogue.check_values import OUTPUT_RELATION
from tracelake.catalogue.context import NonRetryableError
from tracelake.catalogue.sql.findings import SqlRefusedError
from tracelake.model.dag import CheckKind, OutputCheck, ReadMode
from tracelake.spark.checks.conditions import ROW_KINDS, offends
from tracelake.spark.checks.reports import (
    SampleBudget,
    find_columns,
    report_row_count,
    report_rows,
    report_unevaluated,
)
from tracelake.spark.checks.samples import Sample, take_sample
from tracelake.spark.operators.spark_sql import names_of_the_query, prepare_session, run_query, unit_parameters
from tracelake.wire.task_calls import CheckReport
from tracelake.wire.units import PayloadInput, ReadScope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tracelake.spark.work import SparkWork

_NO_INDEX = -1


@dataclass(slots=True)
class CheckEvaluation:
    work: "SparkWork"
    reports: list[CheckReport] = field(default_factory=list)
    samples: SampleBudget = field(default_factory=SampleBudget)

    def check_files(self) -> None:
        """Evaluate the checks of all outputs that are files."""
        for index, output in sorted(self.work.written.items()):
            checks = self._checks_of(index)
            if checks:
                self.work.stop_if_canceled()
                prepare_session(self.work.session)
                frame = self.work.read_files(
                    self.work.session, self._as_input(index), [file.meta for file in output.files], None
                )
                self._check(index, frame, checks)

    def check_batch(self, _work: "SparkWork", index: int, frame: "DataFrame") -> bool:
        """Evaluate the checks of rows for a sink. False if they may not be published."""
        checks = self._checks_of(index)
        if not checks:
            return True
        prepare_session(self.work.session)
        reports = self._check(index, frame, checks)
        return all(report.passed or report.severity == "warn" for report in reports)

    def _checks_of(self, index: int) -> list[OutputCheck]:
        return [item for item in self.work.context.checks if item.output_index == index and item.kind.is_of_rows]

    def _as_input(self, index: int) -> PayloadInput:
        output = self.work.output(index)
        return PayloadInput(
            input_index=_NO_INDEX,
            dataset_uuid=output.dataset_uuid,
            dataset_version=output.dataset_version,
            name=f"checked-{index}",
            unit=self.work.unit,
            revision="",
            where=None,
            scope=ReadScope(mode=ReadMode.ALL),
        )

    def _check(self, index: int, frame: "DataFrame", checks: Sequence[OutputCheck]) -> list[CheckReport]:
        self.work.context.progress(f"{len(checks)} checks of output {index}")
        rows = OutputRows(self, frame)
        reports = [
            *rows.check_in_one_pass([item for item in checks if _is_in_one_pass(item)]),
            *(rows.check_alone(item) for item in checks if not _is_in_one_pass(item)),
        ]
        self.reports += reports
        return reports


def _is_in_one_pass(check: OutputCheck) -> bool:
    return check.kind in ROW_KINDS or check.kind is CheckKind.ROW_COUNT


class OutputRows:
    """The rows of one output while its checks are evaluated."""

    def __init__(self, evaluation: CheckEvaluation, frame: "DataFrame") -> None:
        self._evaluation = evaluation
        self._work = evaluation.work
        self._frame = frame
        self._names = frame.columns
        # By position: a name may hold anything that a name in a query may not.
        self._plain = frame.toDF(*(f"c{index}" for index in range(len(self._names))))
        self._types = [item.dataType for item in frame.schema.fields]
        self._count: int | None = None

    # --- in one pass

    def check_in_one_pass(self, checks: Sequence[OutputCheck]) -> list[CheckReport]:
        import pyspark.sql.functions as F  # noqa: N812

        conditions: dict[str, Any] = {}
        reports: list[CheckReport] = []
        for check in checks:
            if check.kind is CheckKind.ROW_COUNT:
                continue
            try:
                positions = self._positions(check)
                columns = [F.col(f"c{index}") for index in positions]
                conditions[check.name] = offends(check, columns, [self._types[index] for index in positions])
            except NonRetryableError as error:
                reports.append(report_unevaluated(check, error))
        done = {report.name for report in reports}
        remaining = [check for check in checks if check.name not in done]
        if not remaining:
            return reports
        sums = [F.sum(F.when(condition, 1).otherwise(0)) for condition in conditions.values()]
        try:
            with names_of_the_query(self._work, {}):
                row = self._plain.agg(F.count(F.lit(1)), *sums).collect()[0]
        except NonRetryableError as error:
            return [*reports, *(report_unevaluated(check, error) for check in remaining)]
        self._count = row[0]
        offending = {name: row[place] or 0 for place, name in enumerate(conditions, 1)}
        return [*reports, *(self._report_pass(check, offending, conditions) for check in remaining)]

    def _report_pass(self, check: OutputCheck, offending: dict[str, int], conditions: dict[str, Any]) -> CheckReport:
        if check.kind is CheckKind.ROW_COUNT:
            assert self._count is not None
            return report_row_count(check, self._count)
        number = offending[check.name]
        sample: Sample = []
        if number:
            bad = self._plain.where(conditions[check.name])
            sample = take_sample(bad, self._names, self._positions(check))
        return self._report(check, number, sample)

    # --- alone

    def check_alone(self, check: OutputCheck) -> CheckReport:
        self._work.stop_if_canceled()
        evaluate: Callable[[OutputCheck], CheckReport] = {
            CheckKind.UNIQUE: self._check_unique,
            CheckKind.RELATIONSHIP: self._check_relationship,
            CheckKind.SQL: self._check_query,
        }[check.kind]
        try:
            with names_of_the_query(self._work, {}):
                return evaluate(check)
        except NonRetryableError as error:
            return report_unevaluated(check, error)

    def _check_unique(self, check: OutputCheck) -> CheckReport:
        import pyspark.sql.functions as F  # noqa: N812

        groups = self._groups(check)
        keys = [f"k{place}" for place in range(len(check.columns))]
        if check.scope == "dataset" and (others := self._other_units(check)) is not None:
            names = others.columns
            if missing := [name for name in check.columns if name not in names]:
                raise NonRetryableError(f"other units have no column {missing[0]}")
            plain = others.toDF(*(f"c{index}" for index in range(len(names))))
            selected = [
                F.col(f"c{names.index(name)}").alias(f"o{key}") for name, key in zip(check.columns, keys, strict=True)
            ]
            other = plain.select(*selected).distinct().withColumn("there", F.lit(True))
            same = [groups[key] == other[f"o{key}"] for key in keys]
            joined = groups.join(other, same, "left")
            doubled = joined.where((F.col("n") > 1) | F.col("there").isNotNull()).select(*keys, "n")
        else:
            doubled = groups.where("n > 1")
        return self._report_groups(check, doubled, [*check.columns, "rows"])

    def _check_relationship(self, check: OutputCheck) -> CheckReport:
        import pyspark.sql.functions as F  # noqa: N812

        groups = self._groups(check)
        target = self._read_reference(lambda item: item.name == check.dataset)
        if target is None:
            return self._report_groups(check, groups, [*check.columns, "rows"])
        names = target.columns
        if check.target not in names:
            raise NonRetryableError(f"{check.dataset} has no column {check.target}")
        plain = target.toDF(*(f"c{index}" for index in range(len(names))))
        values = plain.select(F.col(f"c{names.index(check.target)}").alias("v"))
        return self._report_groups(
            check, groups.join(values, groups["k0"] == values["v"], "left_anti"), [*check.columns, "rows"]
        )

    def _groups(self, check: OutputCheck) -> "DataFrame":
        """Each combination of values of its columns with the number of its rows, as `k0`, ... and `n`."""
        import pyspark.sql.functions as F  # noqa: N812

        columns = [F.col(f"c{index}").alias(f"k{place}") for place, index in enumerate(self._positions(check))]
        keys = [f"k{place}" for place in range(len(columns))]
        return self._plain.select(*columns).where(_none_is_null(keys)).groupBy(*keys).agg(F.count(F.lit(1)).alias("n"))

    def _report_groups(self, check: OutputCheck, groups: "DataFrame", names: Sequence[str]) -> CheckReport:
        import pyspark.sql.functions as F  # noqa: N812

        sample = take_sample(groups, names, list(range(len(names))))
        number = groups.agg(F.sum("n")).collect()[0][0] if sample else 0
        return self._report(check, int(number or 0), sample)

    def _check_query(self, check: OutputCheck) -> CheckReport:
        from tracelake.catalogue.sql.gate import gate

        assert check.query is not None
        try:
            query = gate(check.query, frozenset({OUTPUT_RELATION}))
        except SqlRefusedError as error:
            raise NonRetryableError(str(error.finding)) from None
        context = self._work.context
        view = f"trace_check_{context.task_id.hex}_{context.attempt}_{check.output_index}"
        with names_of_the_query(self._work, {view: OUTPUT_RELATION}):
            self._frame.createOrReplaceTempView(view)
            try:
                parameters = unit_parameters(self._work, query)
                views = {OUTPUT_RELATION: view}
                frame, _ = run_query(self._work.session, query, views, {OUTPUT_RELATION: self._frame}, parameters)
                sample = take_sample(frame, frame.columns)
                return self._report(check, frame.count() if sample else 0, sample)
            finally:
                self._work.session.catalog.dropTempView(view)

    # --- what checks read besides

    def _other_units(self, check: OutputCheck) -> "DataFrame | None":
        dataset = self._work.output(check.output_index).dataset_uuid
        return self._read_reference(lambda item: item.dataset_uuid == dataset)

    def _read_reference(self, is_meant: "Callable[[PayloadInput], bool]") -> "DataFrame | None":
        """None: it has nothing yet."""
        item = next((item for item in self._work.context.references if is_meant(item)), None)
        if item is None:
            raise NonRetryableError("the task was not given the dataset that the check reads")
        return None if self._work.has_no_files(item) else self._work.read_input(item)

    # --- reports

    def _positions(self, check: OutputCheck) -> list[int]:
        return find_columns(check, self._names)

    def _rows(self) -> int:
        if self._count is None:
            self._count = self._plain.count()
        return self._count

    def _report(self, check: OutputCheck, number: int, sample: Sample) -> CheckReport:
        return report_rows(check, number, self._rows(), self._evaluation.samples.keep(sample))


def _none_is_null(keys: Sequence[str]) -> str:
    return " AND ".join(f"{key} IS NOT NULL" for key in keys)
