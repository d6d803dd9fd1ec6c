"""Batches of logs to batches of decoded events, and to the logs that could not be decoded, with the reason.

Each log of a batch whose topic0 is that of an event ends up in exactly one of the two. Events whose parameters are
single words are decoded column by column; only what has no fixed size is read log by log.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.catalogue.abi import AbiType, Array, Bytes, Event, EventParameter, Plain, Tuple, head_words
from tracelake.catalogue.decode import is_wide, parameter_columns
from tracelake.spark.abi.values import UndecodableError, column_value, decode_values
from tracelake.spark.abi.words import (
    WORD,
    Words,
    as_words,
    binary_column,
    constant,
    fixed_bytes,
    lengths,
    narrow_column,
    wide_columns,
    wrong,
)

Rows = npt.NDArray[np.int64]
TOPICS = ("topic1", "topic2", "topic3")


class Verdict:
    """What is wrong with each of some logs. The first thing found stays."""

    def __init__(self, count: int) -> None:
        self.codes = np.zeros(count, np.int32)
        self._reasons: list[tuple[str, str]] = [("", "")]
        self._codes: dict[tuple[str, str], int] = {}

    def mark(self, rows: Rows, reason: str, detail: str) -> None:
        code = self._codes.setdefault((reason, detail), len(self._reasons))
        if code == len(self._reasons):
            self._reasons.append((reason, detail))
        self.codes[rows[self.codes[rows] == 0]] = code

    def take_over(self, rows: Rows, other: "Verdict") -> None:
        for code, (reason, detail) in enumerate(other._reasons):
            matching = rows[other.codes == code] if code else rows[:0]
            if len(matching):
                self.mark(matching, reason, detail)

    @property
    def good(self) -> Rows:
        return np.flatnonzero(self.codes == 0)

    @property
    def bad(self) -> Rows:
        return np.flatnonzero(self.codes)

    def said(self, rows: Rows) -> tuple[pa.Array, pa.Array]:
        """Reason and detail of these."""
        codes = pa.array(self.codes[rows])
        reasons, details = zip(*self._reasons, strict=True)
        return pa.array(reasons, pa.string()).take(codes), pa.array(details, pa.string()).take(codes)


@dataclass(slots=True)
class Judged:
    verdict: Verdict
    good: Rows
    """The logs that can be decoded; what follows is theirs, in this order."""
    words: dict[str, Words] = field(default_factory=dict)
    """By parameter of one word."""
    values: list[list[Any]] = field(default_factory=list)
    """Of the data, if it has no fixed size."""


@dataclass(frozen=True, slots=True)
class EventDecoder:
    """One event. Its logs have the right topic0 and the right number of topics."""

    event: Event
    topic0: bytes

    @property
    def by_column(self) -> bool:
        return all(isinstance(parameter.type, Plain) for parameter in self.event.plain)

    def judge(self, rows: pa.RecordBatch) -> Judged:
        verdict = Verdict(rows.num_rows)
        for position, parameter in enumerate(self.event.indexed):
            short = np.flatnonzero(lengths(rows.column(TOPICS[position])) != WORD)
            verdict.mark(short, "topic_length", parameter.name)
        data = _present(rows.column("data"))
        expected = WORD * sum(head_words(parameter.type) for parameter in self.event.plain)
        if self.by_column:
            verdict.mark(np.flatnonzero(lengths(data) != expected), "data_length", f"not {expected} bytes of data")
        alive = verdict.good
        judged = Judged(verdict, alive)
        self._judge_words(rows, data, judged)
        if not self.by_column:
            self._judge_values(data, judged)
        return self._without_bad(judged, alive)

    def _judge_words(self, rows: pa.RecordBatch, data: pa.Array, judged: Judged) -> None:
        alive = judged.good
        for position, parameter in enumerate(self.event.indexed):
            words = fixed_bytes(taken(rows.column(TOPICS[position]), alive), WORD)
            self._judge_parameter(parameter, words, judged)
        if self.by_column:
            plain = self.event.plain
            both = fixed_bytes(taken(data, alive), WORD * len(plain))
            for position, parameter in enumerate(plain):
                self._judge_parameter(parameter, both[:, WORD * position : WORD * position + WORD], judged)

    def _judge_parameter(self, parameter: EventParameter, words: Words, judged: Judged) -> None:
        judged.words[parameter.name] = words
        if isinstance(parameter.type, Plain):  # else the topic is a hash of it
            flags, reason = wrong(parameter.type, words)
            if flags.any():
                judged.verdict.mark(judged.good[flags], reason, parameter.name)

    def _judge_values(self, data: pa.Array, judged: Judged) -> None:
        types = [parameter.type for parameter in self.event.plain]
        for row in judged.good:
            try:
                judged.values.append(decode_values(types, data[int(row)].as_py()))
            except UndecodableError as error:
                judged.verdict.mark(np.array([row]), error.reason, error.detail)
                judged.values.append([])

    def _without_bad(self, judged: Judged, alive: Rows) -> Judged:
        judged.good = judged.verdict.good
        if len(judged.good) != len(alive):
            good = judged.verdict.codes[alive] == 0
            judged.words = {name: words[good] for name, words in judged.words.items()}
            judged.values = [value for value, keep in zip(judged.values, good, strict=False) if keep]
        return judged

    def columns(self, judged: Judged) -> dict[str, pa.Array]:
        """Of the parameters, for the logs that are good."""
        by_name: dict[str, pa.Array] = {}
        place = {parameter.name: number for number, parameter in enumerate(self.event.plain)}
        for parameter in self.event.parameters:
            names = [name for name, _ in parameter_columns(parameter)]
            if parameter.name in judged.words:
                arrays = _word_columns(parameter, judged.words[parameter.name])
            else:
                arrays = _value_columns(parameter.type, [value[place[parameter.name]] for value in judged.values])
            by_name.update(zip(names, arrays, strict=True))
        return by_name


def _present(data: pa.Array) -> pa.Array:
    """No data is as good as none of its bytes."""
    return pc.fill_null(data, b"") if data.null_count else data


def taken(column: pa.Array, rows: Rows) -> pa.Array:
    return column if len(rows) == len(column) else column.take(pa.array(rows))


def _word_columns(parameter: EventParameter, words: Words) -> list[pa.Array]:
    if not isinstance(parameter.type, Plain):
        return [binary_column(words)]
    if is_wide(parameter.type):
        return wide_columns(words, signed=parameter.type.kind == "int")
    return [narrow_column(parameter.type, words)]


def _value_columns(abi_type: AbiType, values: list[Any]) -> list[pa.Array]:
    if isinstance(abi_type, Plain) and is_wide(abi_type):
        return wide_columns(as_words(values), signed=abi_type.kind == "int")
    return [pa.array([column_value(abi_type, value) for value in values], arrow_type(abi_type))]


def arrow_type(abi_type: AbiType) -> pa.DataType:
    """What `catalogue.decode.spark_type` is in Arrow."""
    match abi_type:
        case Plain("bool", _):
            return pa.bool_()
        case Plain("uint", 64):
            return pa.decimal128(20, 0)
        case Plain("uint" | "int", size):
            return pa.string() if size > 64 else pa.int64()
        case Plain():
            return pa.binary()
        case Bytes(text):
            return pa.string() if text else pa.binary()
        case Array(element, _):
            return pa.list_(arrow_type(element))
        case Tuple(names, types):
            return pa.struct([(name, arrow_type(kind)) for name, kind in zip(names, types, strict=True)])


def topic_counts(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """How many topics each log has, whose topic0 is there; -1 where one is missing in between."""
    first, second, third = (batch.column(name).is_valid().to_numpy(zero_copy_only=False) for name in TOPICS)
    counts: npt.NDArray[np.int64] = 1 + first.astype(np.int64) + second + third
    counts[(second & ~first) | (third & ~second)] = -1
    return counts


@dataclass(frozen=True, slots=True)
class Group:
    """The logs of one event within a batch."""

    decoder: EventDecoder
    rows: Rows
    judged: Judged


def judge_batch(batch: pa.RecordBatch, decoders: Sequence[EventDecoder]) -> tuple[list[Group], Verdict, Rows]:
    """The groups, what is wrong with which log of the batch, and which logs are of these events at all."""
    verdict = Verdict(batch.num_rows)
    counts = topic_counts(batch)
    groups = []
    matched = np.zeros(batch.num_rows, np.bool_)
    by_topic: dict[bytes, list[EventDecoder]] = {}
    for decoder in decoders:
        by_topic.setdefault(decoder.topic0, []).append(decoder)
    for topic0, candidates in by_topic.items():
        same = pc.fill_null(pc.equal(batch.column("topic0"), pa.scalar(topic0, batch.column("topic0").type)), False)
        undecided: npt.NDArray[np.bool_] = same.to_numpy(zero_copy_only=False).copy()
        matched |= undecided
        for decoder in candidates:
            rows = np.flatnonzero(undecided & (counts == decoder.event.topics))
            undecided[rows] = False
            if len(rows):
                judged = decoder.judge(batch if len(rows) == batch.num_rows else batch.take(pa.array(rows)))
                verdict.take_over(rows, judged.verdict)
                groups.append(Group(decoder, rows, judged))
        expected = " or ".join(sorted({str(decoder.event.topics) for decoder in candidates}))
        verdict.mark(np.flatnonzero(undecided), "topic_count", f"not {expected} topics")
    return groups, verdict, np.flatnonzero(matched)


@dataclass(frozen=True, slots=True)
class EventTable:
    """Any events: common columns, the event's name, and a column or three for each parameter."""

    decoders: Sequence[EventDecoder]
    schema: pa.Schema
    """Of the decoded rows; common columns as the logs have them."""

    @property
    def all_decoders(self) -> Sequence[EventDecoder]:
        return self.decoders

    def decode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self.decoded(batch, judge_batch(batch, self.decoders)[0])

    def decoded(self, batch: pa.RecordBatch, groups: Sequence[Group]) -> Iterator[pa.RecordBatch]:
        """The good logs, group by group."""
        for group in groups:
            if len(group.judged.good):
                yield self._decoded(batch, group)

    def reject(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return reject(batches, self.decoders)

    def _decoded(self, batch: pa.RecordBatch, group: Group) -> pa.RecordBatch:
        columns = dict(group.decoder.columns(group.judged))
        good = group.rows[group.judged.good]
        columns["event"] = constant(group.decoder.event.name, pa.string(), len(good))
        return assemble(self.schema, columns, batch, good)


def assemble(schema: pa.Schema, columns: Mapping[str, pa.Array], batch: pa.RecordBatch, rows: Rows) -> pa.RecordBatch:
    """Columns that were decoded, those that the log has, and nothing for the rest."""
    arrays = []
    for column in schema:
        if column.name in columns:
            array = columns[column.name]
        elif column.name in batch.schema.names:
            array = taken(batch.column(column.name), rows)
        else:
            array = pa.nulls(len(rows), column.type)
        arrays.append(array if array.type == column.type else array.cast(column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def reject(batches: Iterator[pa.RecordBatch], decoders: Sequence[EventDecoder]) -> Iterator[pa.RecordBatch]:
    """The logs of these events that cannot be decoded, whole, with `reason` and `detail`."""
    for batch in batches:
        rejects = rejected(batch, judge_batch(batch, decoders)[1])
        if rejects.num_rows:
            yield rejects


def rejected(batch: pa.RecordBatch, verdict: Verdict) -> pa.RecordBatch:
    bad = verdict.bad
    columns = [*batch.take(pa.array(bad)).columns, *verdict.said(bad)]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "reason", "detail"])
