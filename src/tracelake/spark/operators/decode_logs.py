"""decode_logs: logs of contracts to typed columns, by the ABI of their events.

Output 0 has the decoded rows. Output 1, if the job declares one, has the logs of these events that cannot be decoded,
whole and with the reason. Together they are all logs of the input with one of the topics, which is checked each time.
Every log is decoded once: the Spark task that has it writes it to the one file or to the other.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelake.catalogue.context import NonRetryableError, OperatorResult
from tracelake.catalogue.decode import (
    COMMON_COLUMNS,
    TOKEN_TRANSFERS,
    TRANSFER_COLUMNS,
    DecodeLogsConfig,
    all_columns,
    built_in,
)
from tracelake.spark.abi.logs import EventDecoder, EventTable
from tracelake.spark.abi.split import DECODED, LEFT, MATCHES, LogSplit
from tracelake.spark.abi.tokens import TransferTable, transfer_decoders
from tracelake.spark.evm.keccak import keccak256
from tracelake.spark.work import SparkWork
from tracelake.spark.writer import SplitOutput, write_split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

REQUIRED = ("block_number", "log_index", "address", "topic0", "topic1", "topic2", "topic3", "data")
ORDER = ("block_number", "log_index")


def run(work: SparkWork) -> OperatorResult:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    config = work.context.config
    assert isinstance(config, DecodeLogsConfig)
    if config.keep_other and not work.has_output(1):
        raise NonRetryableError("keep_other needs a second output to keep the other logs in")
    work.settle([0])
    logs = work.read()
    missing = [name for name in REQUIRED if name not in logs.columns]
    if missing:
        raise NonRetryableError(f"the input has no column {', '.join(missing)}: it is no dataset of logs")
    tokens = not config.events
    table, schema = _transfers(logs) if tokens else _events(logs, config)
    matches = _matches(table, config)
    outputs = {DECODED: SplitOutput(work.target(DECODED), _arrow(schema))}
    if work.has_output(LEFT):
        outputs[LEFT] = SplitOutput(work.target(LEFT), _arrow(_left_schema(logs)))
    else:  # what nobody keeps need not travel
        logs = logs.select(*(name for name in logs.columns if name in (*REQUIRED, *COMMON_COLUMNS)))

    observation = Observation()
    observed = logs.observe(observation, F.count(F.lit(1)).alias("logs"), F.count_if(matches).alias("matched"))
    rows = observed.withColumn(MATCHES, matches) if config.keep_other else observed.filter(matches)
    work.stop_if_canceled()
    split = LogSplit(table, (*ORDER, "batch_index") if tokens else ORDER)
    result = write_split(rows, outputs, split, *work.blocks, order=ORDER, spread=work.spread())
    total, matched = (int(observation.get.get(name) or 0) for name in ("logs", "matched"))
    if result.received != (total if config.keep_other else matched):
        raise RuntimeError(
            f"of {total} logs {matched} are of these events, but {result.received} arrived to be decoded"
        )
    for index in outputs:
        work.seal_output(index, result.written[index].files, None)
    other = total - matched
    bad = result.written[LEFT].rows - (other if config.keep_other else 0) if LEFT in outputs else result.dropped
    work.context.progress(f"{matched - bad} logs decoded, {bad} undecodable, {other} of other events")
    return work.result()


def _left_schema(logs: "DataFrame") -> "StructType":
    from pyspark.sql.types import StringType, StructType

    return StructType([*logs.schema.fields]).add("reason", StringType()).add("detail", StringType())


def _matches(table: EventTable | TransferTable, config: DecodeLogsConfig) -> "Column":
    """True or false, never null."""
    from pyspark.sql import functions as F  # noqa: N812

    decoders = table.decoders.values() if isinstance(table, TransferTable) else table.decoders
    topics = sorted({decoder.topic0 for decoder in decoders})
    condition = F.col("topic0").isin(topics)
    if config.addresses:
        contracts = sorted({bytes.fromhex(address.removeprefix("0x")) for address in config.addresses})
        condition = condition & F.col("address").isin(contracts)
    return F.coalesce(condition, F.lit(False))


def _events(logs: "DataFrame", config: DecodeLogsConfig) -> "tuple[EventTable, StructType]":
    events = config.read_events()
    schema = _schema(logs, COMMON_COLUMNS, [("event", "string"), *all_columns(events)])
    decoders = [EventDecoder(event, keccak256(event.signature.encode())) for event in events]
    return EventTable(decoders, _arrow(schema)), schema


def _transfers(logs: "DataFrame") -> "tuple[TransferTable, StructType]":
    topics = {name: keccak256(built_in(name).signature.encode()) for name in TOKEN_TRANSFERS}
    common = [name for name in COMMON_COLUMNS if name != "address"]
    schema = _schema(logs, common, list(TRANSFER_COLUMNS))
    return TransferTable(transfer_decoders(topics), _arrow(schema)), schema


def _schema(logs: "DataFrame", common: Sequence[str], own: Sequence[tuple[str, str]]) -> "StructType":
    """The common columns that the logs have, as they have them, then these."""
    from pyspark.sql.types import StructType

    fields = [logs.schema[name] for name in common if name in logs.columns]
    schema = StructType.fromDDL(", ".join(f"`{name}` {kind}" for name, kind in own))
    assert isinstance(schema, StructType)
    return StructType(fields + schema.fields)


def _arrow(schema: "StructType") -> "pa.Schema":
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow_schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return arrow_schema
