"""The Spark operators: which module holds the `run` of each name. It is imported when its operator is first used."""

OPERATORS: dict[str, str] = {
    "cryo_ingest": "tracelake.spark.operators.evm_ingest",
    "evm_ingest": "tracelake.spark.operators.evm_ingest",
}
