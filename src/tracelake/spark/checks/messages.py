"""What a failed check says of the rows: what was expected, and how many are otherwise."""

from tracelake.catalogue.check_values import describe_bounds, describe_values
from tracelake.model.dag import CheckKind, OutputCheck


def describe(check: OutputCheck, number: int, rows: int) -> str:
    """`number` rows of `rows` offend."""
    columns = ", ".join(check.columns)
    share = f"{number:,} of {rows:,} {'row' if rows == 1 else 'rows'}"
    match check.kind:
        case CheckKind.NOT_NULL:
            return f"{columns} {'is' if len(check.columns) == 1 else 'have a'} null in {share}"
        case CheckKind.UNIQUE:
            where = "row of the dataset" if check.scope == "dataset" else "row of the unit"
            return f"{share} have the same {columns} as another {where}"
        case CheckKind.ACCEPTED_VALUES:
            return f"{columns} is none of {describe_values(check)} in {share}"
        case CheckKind.RANGE:
            return f"{columns} is not {describe_bounds(check)} in {share}"
        case CheckKind.ROW_COUNT:
            return f"the unit has {rows:,} {'row' if rows == 1 else 'rows'}, expected {describe_bounds(check)}"
        case CheckKind.RELATIONSHIP:
            return f"{columns} is not in {check.target} of {check.dataset} in {share}"
        case _:
            return f"the query returns {number:,} {'row' if number == 1 else 'rows'}"
