"""Transfers of fungible and other tokens in one table, whichever of the three standards they follow.

ERC-20 and ERC-721 have the same topic0 and are told apart by the number of topics. A batch gives a row for each of its
transfers; a batch without any is kept with the undecodable logs, since it would leave no trace otherwise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tracelake.catalogue.decode import TOKEN_TRANSFERS, built_in
from tracelake.spark.abi.logs import EventDecoder, Group, Judged, Rows, assemble, judge_batch, reject
from tracelake.spark.abi.values import OVERLAP, WORD, UndecodableError, array_span
from tracelake.spark.abi.words import Words, binary_column, constant, decimal_text, wide_columns

_ONE = bytes(31) + b"\x01"


class BatchDecoder(EventDecoder):
    """TransferBatch: of each log only the ends of its two arrays are read in Python; the numbers stay bytes."""

    __slots__ = ()

    def _judge_values(self, data: pa.Array, judged: Judged) -> None:
        for row in judged.good:
            body = data[int(row)].as_py()
            try:
                judged.values.append(_batch(body))
            except UndecodableError as error:
                judged.verdict.mark(np.array([row]), error.reason, error.detail)
                judged.values.append([])


def _batch(data: bytes) -> list[bytes]:
    """The words of the ids, and of the amounts."""
    if len(data) < 4 * WORD:
        raise UndecodableError("data_length", "less data than two empty arrays take")
    (ids, count), (values, other) = array_span(data, 0), array_span(data, 1)
    if (4 + count + other) * WORD > len(data):
        raise UndecodableError("overlap", OVERLAP)
    if count != other:
        raise UndecodableError("batch_lengths", f"{count} ids and {other} amounts")
    if not count:
        raise UndecodableError("empty_batch", "it transfers nothing")
    return [data[ids : ids + count * WORD], data[values : values + count * WORD]]


@dataclass(frozen=True, slots=True)
class TransferTable:
    decoders: dict[str, EventDecoder]
    """By the event's name in `catalogue.decode.BUILT_IN`."""
    schema: pa.Schema

    @property
    def all_decoders(self) -> Sequence[EventDecoder]:
        return list(self.decoders.values())

    def decode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self.decoded(batch, judge_batch(batch, self.all_decoders)[0])

    def decoded(self, batch: pa.RecordBatch, groups: Sequence[Group]) -> Iterator[pa.RecordBatch]:
        """The transfers of the good logs, group by group."""
        names = {id(decoder): name for name, decoder in self.decoders.items()}
        for group in groups:
            if len(group.judged.good):
                yield self._decoded(batch, group, names[id(group.decoder)])

    def reject(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return reject(batches, list(self.decoders.values()))

    def _decoded(self, batch: pa.RecordBatch, group: Group, name: str) -> pa.RecordBatch:
        standard, _, event = name.partition(".")
        words, rows = group.judged.words, group.rows[group.judged.good]
        index = np.zeros(len(rows), np.int32)
        ids: Words | None = None
        if name == "erc20.Transfer":
            amounts = words["value"]
        elif name == "erc721.Transfer":
            ids, amounts = words["tokenId"], np.frombuffer(_ONE, np.uint8).reshape(1, WORD)
        elif name == "erc1155.TransferSingle":
            ids, amounts = words["id"], words["value"]
        else:
            repeated, index, ids, amounts = _flat(group.judged.values)
            rows = rows[repeated]
            words = {key: value[repeated] for key, value in words.items()}
        columns = {
            "standard": constant(standard, pa.string(), len(rows)),
            "event": constant(event, pa.string(), len(rows)),
            "from_address": binary_column(words["from"][:, 12:]),
            "to_address": binary_column(words["to"][:, 12:]),
            "batch_index": pa.array(index),
        }
        amount = wide_columns(amounts, signed=False)
        if standard == "erc721":  # always one: written down once, and repeated
            amount = [pa.repeat(column[0], len(rows)) for column in amount]
        columns.update(zip(("amount_binary", "amount_string", "amount_f64"), amount, strict=True))
        if ids is not None:
            columns.update(token_id_binary=binary_column(ids), token_id_string=decimal_text(ids))
        if "operator" in words:
            columns["operator_address"] = binary_column(words["operator"][:, 12:])
        names = ["token" if name == "address" else name for name in batch.schema.names]
        return assemble(self.schema, columns, batch.rename_columns(names), rows)


def _flat(values: list[list[bytes]]) -> tuple[Rows, "np.typing.NDArray[np.int32]", Words, Words]:
    """For each transfer of the batches: of which log it is, the how manieth there, its id and its amount."""
    counts = np.array([len(ids) // WORD for ids, _ in values], np.int64)
    repeated = np.repeat(np.arange(len(values)), counts)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    index = (np.arange(len(repeated)) - starts).astype(np.int32)
    ids, amounts = (
        np.frombuffer(b"".join(each[place] for each in values), np.uint8).reshape(-1, WORD) for place in (0, 1)
    )
    return repeated, index, ids, amounts


def transfer_decoders(topic0_of: "dict[str, bytes]") -> dict[str, EventDecoder]:
    """`topic0_of`: by the name of the event."""
    return {
        name: (BatchDecoder if name.endswith("TransferBatch") else EventDecoder)(built_in(name), topic0_of[name])
        for name in TOKEN_TRANSFERS
    }
