"""Words of queries that are no functions: units, and names that Spark takes for functions."""

UNITS: frozenset[str] = frozenset(
    f"{unit}{plural}"
    for unit in ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")
    for plural in ("", "S")
) | {"DAYOFYEAR"}
INTERVAL_UNITS: frozenset[str] = UNITS - {"QUARTER", "QUARTERS", "DAYOFYEAR"}
EXTRACTED: frozenset[str] = UNITS | {"DOW", "DOW_ISO", "DOY", "DAYOFWEEK", "DAYOFWEEK_ISO", "YEAROFWEEK"}

BARE_NAMES: frozenset[str] = frozenset(
    [
        "current_catalog", "current_database", "current_date", "current_path", "current_schema", "current_time",
        "current_timestamp", "current_timezone", "current_user", "localtime", "localtimestamp", "now", "session_user",
        "user",
    ]
)  # fmt: skip
"""What Spark takes for a function when it finds no column of that name. Behind a table's name it is a column."""

INSTEAD: dict[str, str] = {
    "current_date": "A task must give the same rows when it is tried again: use a column, or `${start}`.",
    "current_timestamp": "A task must give the same rows when it is tried again: use a column.",
    "input_file_name": "Files are not seen: join on what is in the rows.",
    "monotonically_increasing_id": "Use `row_number() OVER (ORDER BY ...)`.",
    "now": "A task must give the same rows when it is tried again: use a column.",
    "rand": "A task must give the same rows when it is tried again: use `hash(column)`.",
    "random": "A task must give the same rows when it is tried again: use `hash(column)`.",
    "range": "Use `explode(sequence(first, last))`.",
    "uuid": "A task must give the same rows when it is tried again: use `sha2` of a key.",
    "cast": "Write `CAST(value AS type)`.",
}
