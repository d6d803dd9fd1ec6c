"""token_metadata: symbol, decimals and name of the tokens in a unit, read from their contracts, each token once.

Tokens that an input lists as known are left out. The usual one is the job's own second output of the unit before
(`self: previous`), which lists all tokens so far; this unit's is written with the new ones added.
"""

from decimal import Decimal
from typing import TYPE_CHECKING

from tracelake.catalogue.context import CanceledError, NonRetryableError, OperatorResult
from tracelake.catalogue.token_metadata import TOKEN_COLUMNS, TokenMetadataConfig
from tracelake.model.dag import ReadMode
from tracelake.spark.evm import endpoints
from tracelake.spark.evm.errors import IngestError, NoEndpointError, NoStateError, RpcError
from tracelake.spark.evm.node import RpcOptions
from tracelake.spark.evm.node_pool import RpcPool
from tracelake.spark.evm.token_lookup import TokenBlock, TokenRow, look_up
from tracelake.spark.work import SparkWork
from tracelake.wire.units import PayloadInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_TOKENS = 200_000
_KNOWN = "token"
_LISTS = frozenset({ReadMode.PREVIOUS, ReadMode.ALL, ReadMode.LATEST, ReadMode.HISTORY})
"""How an input is read that lists known tokens. Others are only waited for."""


def run(work: SparkWork) -> OperatorResult:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    config = work.context.config
    assert isinstance(config, TokenMetadataConfig)
    lists = [item for item in work.context.inputs[1:] if item.scope is not None and item.scope.mode in _LISTS]
    work.settle([0, *(item.input_index for item in lists)])
    rows = _read_tokens(work, config)
    known_frames = [_read_known(work, item) for item in lists]
    tokens = rows.groupBy(_KNOWN).agg(F.min("block_number").alias("block_number"))
    for frame in known_frames:
        tokens = tokens.join(frame, _KNOWN, "left_anti")
    new = tokens.limit(MOST_TOKENS + 1).collect()
    if len(new) > MOST_TOKENS:
        raise NonRetryableError(f"the unit has more than {MOST_TOKENS} new tokens: use smaller units")
    first_blocks = {bytes(row[_KNOWN]): int(row["block_number"]) for row in new}
    token_rows = _look_up(work, config, sorted(first_blocks), _block(work, config, rows))
    work.write(_result(work, config, token_rows, first_blocks), 0, order=("block_number", "token"), files=1)
    if work.has_output(1):
        everything = rows.select(_KNOWN)
        for frame in known_frames:
            everything = everything.union(frame)
        work.write(everything.distinct(), 1, order=(_KNOWN,), files=1)
    problems = sum(row.problem is not None for row in token_rows)
    work.context.progress(f"{len(token_rows)} new tokens looked up, {problems} of them with problems")
    return work.result()


def _read_tokens(work: SparkWork, config: TokenMetadataConfig) -> "DataFrame":
    """The tokens of the unit, and the blocks they occur in."""
    from pyspark.sql import functions as F  # noqa: N812

    frame = work.read(0)
    missing = [name for name in (config.column, "block_number") if name not in frame.columns]
    if missing:
        raise NonRetryableError(f"the input has no column {', '.join(missing)}: correct `column` of the config")
    kind = frame.schema[config.column].dataType.simpleString()
    if kind != "binary":
        raise NonRetryableError(
            f"the column {config.column} is {kind}, expected binary: 20 bytes for each token, as"
            f" unhex(substring({config.column}, 3)) gives for hex text"
        )
    tokens = frame.select(F.col(config.column).alias(_KNOWN), F.col("block_number").cast("bigint"))
    return tokens.filter(F.col(_KNOWN).isNotNull())


def _read_known(work: SparkWork, item: PayloadInput) -> "DataFrame":
    assert item.scope is not None
    frame = work.read_input(item)
    if item.scope.mode is ReadMode.PREVIOUS and (frame.columns != [_KNOWN] or not work.has_output(1)):
        raise NonRetryableError(
            "`self: previous` must read the list of known tokens: use `outputs: 2`, and the input"
            " `{self: previous, output_index: 1, columns: {token: binary}}`"
        )
    if _KNOWN not in frame.columns or frame.schema[_KNOWN].dataType.simpleString() != "binary":
        raise NonRetryableError(f"the input {item.name} lists known tokens, and has no binary column `{_KNOWN}`")
    return frame.select(_KNOWN)


def _block(work: SparkWork, config: TokenMetadataConfig, rows: "DataFrame") -> TokenBlock:
    """The last block of the unit; where the unit is none of blocks, the newest one in it."""
    from pyspark.sql import functions as F  # noqa: N812

    latest = config.at == "latest"
    if not work.is_time_window and 0 not in work.tables:
        return TokenBlock(work.blocks[1], latest)
    newest = rows.agg(F.max("block_number").alias("newest")).collect()[0]["newest"]
    return TokenBlock(int(newest or 0), latest)


def _look_up(work: SparkWork, config: TokenMetadataConfig, tokens: list[bytes], block: TokenBlock) -> list[TokenRow]:
    if not tokens:
        return []

    def sleep(seconds: float) -> None:
        if work.context.cancel.wait(seconds):
            raise CanceledError

    options = RpcOptions(
        chain_id=config.chain_id,
        batch_size=config.batch_size,
        deadline_seconds=config.retry_seconds,
        requests_per_second=config.max_requests_per_second,
        calls_per_second=config.max_calls_per_second,
    )
    try:
        pool = RpcPool(endpoints.resolve(work.context.org, config.rpc), options, sleep=sleep)
    except NoEndpointError as error:
        raise NonRetryableError(f"{error.kind}: {error}") from None
    work.context.progress(f"looking up {len(tokens)} tokens at block {'latest' if block.latest else block.number}")
    token_rows: list[TokenRow] = []
    try:
        for row in look_up(pool, tokens, block):
            work.stop_if_canceled()
            token_rows.append(row)
    except RpcError as error:
        work.stop_if_canceled()
        if not error.retryable:
            hint = ", or set `at: latest`" if isinstance(error, NoStateError) else ""
            raise NonRetryableError(f"{error.kind}: {error}{hint}") from None
        raise IngestError(error.kind, f"{len(tokens)} tokens at block {block.number}: {error}") from None
    except NonRetryableError as error:
        raise NonRetryableError(f"{getattr(error, 'kind', 'failed')}: {error}") from None
    finally:
        pool.close()
    return token_rows


def _result(
    work: SparkWork, config: TokenMetadataConfig, token_rows: list[TokenRow], first_blocks: dict[bytes, int]
) -> "DataFrame":
    schema = ", ".join(f"`{column.name}` {column.type}" for column in TOKEN_COLUMNS.columns)
    chain_id = Decimal(config.chain_id)
    rows = [
        (
            first_blocks[row.token],
            bytearray(row.token),
            row.symbol,
            row.decimals,
            row.name,
            row.problem,
            row.read_at_block,
            chain_id,
        )
        for row in token_rows
    ]
    return work.session.createDataFrame(rows, schema).coalesce(1)
