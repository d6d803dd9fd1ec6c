"""The Spark operators: which module holds the `run` of each name. It is imported when its operator is first used."""

OPERATORS: dict[str, str] = {}
