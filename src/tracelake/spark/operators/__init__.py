"""The Spark operators: which module holds the `run` of each name. It is imported when its operator is first used."""

OPERATORS: dict[str, str] = {
    "cryo_ingest": "tracelake.spark.operators.evm_ingest",
    "decode_logs": "tracelake.spark.operators.decode_logs",
    "evm_ingest": "tracelake.spark.operators.evm_ingest",
    "integrity_check": "tracelake.spark.operators.integrity_check",
    "query": "tracelake.spark.operators.query",
    "spark_sql": "tracelake.spark.operators.spark_sql",
}
