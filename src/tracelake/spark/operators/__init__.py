"""The Spark operators: which module holds the `run` of each name. It is imported when its operator is first used."""

from tracelake.catalogue import CATALOGUE

OPERATORS: dict[str, str] = {
    "cryo_ingest": "tracelake.spark.operators.evm_ingest",
    "decode_logs": "tracelake.spark.operators.decode_logs",
    "evm_ingest": "tracelake.spark.operators.evm_ingest",
    "integrity_check": "tracelake.spark.operators.integrity_check",
    "parquet_compact": "tracelake.spark.operators.parquet_compact",
    "query": "tracelake.spark.operators.query",
    "spark_sql": "tracelake.spark.operators.spark_sql",
    "token_metadata": "tracelake.spark.operators.token_metadata",
}
"""Those of Trace itself."""


def operator_modules() -> dict[str, str]:
    """All of them, with those of installed packages."""
    plugins = (item.plugin for item in CATALOGUE.plugins.values())
    return OPERATORS | {plugin.spec.name: plugin.module for plugin in plugins if plugin is not None}
