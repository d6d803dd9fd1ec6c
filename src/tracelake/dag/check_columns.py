"""Compares a check with the columns of its output, as far as they are known before anything runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelake.catalogue.check_values import OUTPUT_RELATION, misfit
from tracelake.catalogue.sql.columns.types import NUMERIC, TIMES, parse_type
from tracelake.catalogue.sql.findings import SqlRefusedError, offset_of
from tracelake.dag.draft import CheckDraft
from tracelake.dag.kinds import DocumentPlace
from tracelake.dag.problems import one_of, shown
from tracelake.model.columns import DatasetColumn, DatasetColumns
from tracelake.model.dag import CheckKind

if TYPE_CHECKING:
    from tracelake.catalogue.sql.columns.scopes import SqlRelation
    from tracelake.dag.inference import ColumnInference

_SHOWN = 20


def check_known_columns(check: CheckDraft, names: Sequence[str], inference: "ColumnInference") -> None:
    columns = inference.of_rows(check.output)
    if check.kind is CheckKind.SQL:
        _check_query(check, columns, inference)
        return
    value = check.record.values[check.kind]
    whole = check.kind in (CheckKind.NOT_NULL, CheckKind.UNIQUE)
    place = check.record.at(check.kind) if whole else value.at("column") if names else check.record.place
    places = place.items() if whole and len(names) > 1 else [place] * len(names)
    for name, where in zip(names, places, strict=True):
        column = _find(name, columns, where, "The output")
        if column is not None:
            _check_type(check, column, where)
    if check.kind is CheckKind.RELATIONSHIP and check.target is not None:
        target = value.values["to"]
        other = _find(target.values["column"], inference.of_input(check.target), target.at("column"), "The dataset")
        own = next((item for item in columns.columns if item.name == names[0]), None)
        if other is not None and own is not None:
            _check_comparable(own, other, target.at("column"))


def _find(name: str, columns: DatasetColumns, place: DocumentPlace, owner: str) -> DatasetColumn | None:
    column = next((item for item in columns.columns if item.name == name), None)
    if column is None and columns.complete:
        names = [item.name for item in columns.columns]
        hint = place.problems.did_you_mean(name, names) or f"It has {one_of(names[:_SHOWN])}."
        place.problem("unknown_column", f"{owner} has no column {shown(name)}.", hint)
    return column


def _check_type(check: CheckDraft, column: DatasetColumn, place: DocumentPlace) -> None:
    kind = parse_type(column.type)
    value = check.record.values[check.kind]
    if not kind.is_known:
        return
    if check.kind is CheckKind.RELATIONSHIP and kind.items:
        message = f"A relationship compares single values, and {shown(column.name)} is {kind}."
        place.problem("check_type", message, "Name another column.")
    elif check.kind is CheckKind.RANGE:
        if kind.kind not in NUMERIC | TIMES:
            message = f"`range` compares numbers, dates and times, and {shown(column.name)} is {kind}."
            hint = "Use `accepted_values`, or a check of kind `sql` that casts it."
            place.problem("check_type", message, hint)
            return
        for name in ("min", "max"):
            if name in value.values and (wrong := misfit(kind, value.values[name])):
                value.at(name).problem("check_type", f"The column {shown(column.name)} is {kind}: {wrong}.")
    elif check.kind is CheckKind.ACCEPTED_VALUES:
        if kind.items:
            message = f"`accepted_values` compares single values, and {shown(column.name)} is {kind}."
            place.problem("check_type", message, "Use a check of kind `sql`.")
            return
        for item, where in zip(value.values["values"], value.at("values").items(), strict=True):
            if wrong := misfit(kind, item):
                where.problem("check_type", f"The column {shown(column.name)} is {kind}: {wrong}.")
                return


def _check_comparable(own: DatasetColumn, other: DatasetColumn, place: DocumentPlace) -> None:
    left, right = parse_type(own.type), parse_type(other.type)
    if not left.is_known or not right.is_known or left == right or {left.kind, right.kind} <= NUMERIC:
        return
    message = f"The column {shown(own.name)} is {left}, and {shown(other.name)} of the other dataset is {right}."
    place.problem("check_type", message, "Compare columns of one type, or cast them in a check of kind `sql`.")


def _check_query(check: CheckDraft, columns: DatasetColumns, inference: "ColumnInference") -> None:
    # The SQL parser is slow to import, and most documents have no such check.
    from tracelake.catalogue.sql.gate import analyse, gate

    place, query = check.record.at(CheckKind.SQL), check.record.values[CheckKind.SQL]
    try:
        gated = gate(query, frozenset({OUTPUT_RELATION}))
    except SqlRefusedError as error:
        finding = error.finding
        text = finding.message.replace("is not an input of this job", "is not the output that is checked")
        message = f"{text[:1].upper()}{text[1:]} ({finding.code})."
        place.problem_inside("check_sql", message, finding.suggestion, offset_of(query, finding.line, finding.column))
        return
    if not gated.relations:
        message = f"The query does not read `{OUTPUT_RELATION}`, the rows that are checked."
        place.problem("check_sql", message, "Write `SELECT ... FROM output WHERE ...`.")
        return
    if not inference.is_affordable(query):
        return
    for mistake in analyse(query, {OUTPUT_RELATION: _relation(columns)}).findings:
        message = f"{mistake.message[:1].upper()}{mistake.message[1:]}."
        place.problem_inside(mistake.code, message, mistake.suggestion, mistake.offset)


def _relation(columns: DatasetColumns) -> "SqlRelation":
    from tracelake.catalogue.sql.columns.scopes import RelationColumn, SqlRelation

    items = (RelationColumn(column.name, parse_type(column.type)) for column in columns.columns)
    return SqlRelation(tuple(items), columns.complete)
