"""The operators, sorted by name. The entries of Spark operators are in the modules of their configs."""

from typing import Annotated, Any

from msgspec import Meta

from tracelake.catalogue.block_follower import SPEC as BLOCK_FOLLOWER
from tracelake.catalogue.compact import SPEC as PARQUET_COMPACT
from tracelake.catalogue.decode import SPEC as DECODE_LOGS
from tracelake.catalogue.evm import ALIAS as CRYO_INGEST
from tracelake.catalogue.evm import SPEC as EVM_INGEST
from tracelake.catalogue.http_fetch import SPEC as HTTP_FETCH
from tracelake.catalogue.integrity import SPEC as INTEGRITY_CHECK
from tracelake.catalogue.spec import WORKERS, OperatorConfig, OperatorSpec
from tracelake.catalogue.sql.config import SPEC as SPARK_SQL
from tracelake.catalogue.sql.query_config import SPEC as QUERY
from tracelake.catalogue.token_metadata import SPEC as TOKEN_METADATA
from tracelake.catalogue.webhook_rows import SPEC as WEBHOOK_ROWS
from tracelake.model.runtime import DISPATCHER, LAMBDA

Blocks = Annotated[int, Meta(ge=1, le=2**62)]


class NoopConfig(OperatorConfig, frozen=True):
    pass


class SleepConfig(OperatorConfig, frozen=True, kw_only=True):
    seconds: Annotated[float, Meta(ge=0, le=7 * 24 * 3600)]
    fail_attempts: Annotated[int, Meta(ge=0, le=1000)] = 0
    """The first N attempts fail and may be retried."""


class RangeSplitterConfig(OperatorConfig, frozen=True, kw_only=True):
    size: Blocks
    """Blocks per unit."""
    align: bool = True
    """Cut at multiples of `size`; if False, count from the start of each incoming range."""


class RangeAggregatorConfig(OperatorConfig, frozen=True, kw_only=True):
    size: Blocks
    """Blocks per window. Windows begin at multiples of it."""


class TickerConfig(OperatorConfig, frozen=True, kw_only=True):
    seconds: Annotated[float, Meta(ge=0.01, le=7 * 24 * 3600)]
    """Between ticks."""
    start: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """Added to every cursor."""
    ticks: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """The source ends after this many ticks; without it, never."""


class UdfConfig(OperatorConfig, frozen=True, kw_only=True):
    """The config of a user function, which the platform passes on unread."""

    values: dict[str, Any] = {}


SPECS = (
    BLOCK_FOLLOWER,
    CRYO_INGEST,
    DECODE_LOGS,
    EVM_INGEST,
    HTTP_FETCH,
    INTEGRITY_CHECK,
    OperatorSpec(
        "noop",
        NoopConfig,
        "Does nothing and completes; for benchmarks and demonstrations.",
        control=True,
        fills_tables=True,
    ),
    PARQUET_COMPACT,
    QUERY,
    OperatorSpec(
        "range_aggregator",
        RangeAggregatorConfig,
        "Emits a window of `size` blocks once its input covers all of it.",
        runtimes=frozenset({DISPATCHER}),
        control=True,
        only_events=True,
    ),
    OperatorSpec(
        "range_splitter",
        RangeSplitterConfig,
        "Splits each range of its input into units of `size` blocks.",
        runtimes=frozenset({DISPATCHER}),
        control=True,
        only_events=True,
    ),
    OperatorSpec(
        "sleep",
        SleepConfig,
        "Waits `seconds`, then completes; fails its first `fail_attempts` attempts.",
        runtimes=WORKERS,
        fills_tables=True,
    ),
    SPARK_SQL,
    OperatorSpec(
        "ticker",
        TickerConfig,
        "Emits the number of each period of `seconds` since 1970 as it begins, plus `start`; for `always_on`.",
        runtimes=WORKERS,
        only_events=True,
    ),
    TOKEN_METADATA,
    OperatorSpec(
        "udf",
        UdfConfig,
        "Runs a function of an uploaded bundle; its config is passed unchanged.",
        runtimes=frozenset({LAMBDA}),
        output_storage="s3",
    ),
    WEBHOOK_ROWS,
)
