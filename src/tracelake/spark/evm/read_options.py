"""What a job wants of answers besides the usual columns, and the decoders that follow from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from tracelake.spark.evm.calls import AnswerDecoder, PackingDecoder
from tracelake.spark.evm.chain_rules import STRICT, ChainRules
from tracelake.spark.evm.log_filter import LogSelection
from tracelake.spark.evm.optional_columns import AnswerTypes, ChosenFields, answer_types, chosen_fields
from tracelake.spark.evm.packed import pack_regular_block, pack_regular_receipts, pack_whole_block
from tracelake.spark.evm.verified_answers import verified_types


@dataclass(frozen=True, slots=True)
class ReadOptions:
    columns: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """By table, the optional columns."""
    rules: ChainRules = STRICT
    filter: LogSelection | None = None
    """Which logs are read; None: all of them, with their blocks and transactions."""
    all_blocks: bool = False
    """With a filter, `blocks` has all blocks, not only those with such a log."""
    verify_roots: bool = False
    """Hashes and roots of blocks are computed from their content. Rules must be strict then, and there is no filter."""

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Sequence[str]],
        rules: ChainRules = STRICT,
        log_filter: LogSelection | None = None,
        *,
        all_blocks: bool = False,
        verify_roots: bool = False,
    ) -> "ReadOptions":
        choice = tuple((table, tuple(names)) for table, names in columns.items() if names)
        return cls(choice, rules, log_filter, all_blocks, verify_roots)

    def optional(self, table: str) -> tuple[str, ...]:
        return dict(self.columns).get(table, ())

    @property
    def fields(self) -> ChosenFields:
        return chosen_fields(self.optional("blocks"), self.optional("transactions"))


USUAL = ReadOptions()


class AnswerDecoders(NamedTuple):
    blocks: AnswerDecoder
    headers: AnswerDecoder
    block_receipts: AnswerDecoder
    receipts: AnswerDecoder
    plain_receipts: AnswerDecoder
    """Those of a block, never packed."""


@lru_cache(maxsize=16)
def decoders_of(options: ReadOptions = USUAL) -> AnswerDecoders:
    """Kept: msgspec compiles a decoder when it is made."""
    fields = options.fields
    if options.verify_roots:
        return _plain_decoders(verified_types(fields))
    kinds = answer_types(fields, null_fields=options.rules.null_fields)
    pack_block = pack_whole_block if options.rules.null_fields else pack_regular_block
    pack_receipts = pack_regular_receipts
    if fields != ChosenFields():
        pack_block, pack_receipts = partial(pack_block, fields=fields), partial(pack_receipts, fields=fields)
    by_block = list[kinds.receipt]  # type: ignore[name-defined]
    return AnswerDecoders(
        PackingDecoder(kinds.block, pack_block),
        AnswerDecoder(kinds.header),
        PackingDecoder(by_block, pack_receipts),
        AnswerDecoder(kinds.receipt),
        AnswerDecoder(by_block),
    )


def _plain_decoders(kinds: AnswerTypes) -> AnswerDecoders:
    """Nothing is packed before all of its fields were hashed."""
    by_block = AnswerDecoder(list[kinds.receipt])  # type: ignore[name-defined]
    return AnswerDecoders(
        AnswerDecoder(kinds.block), AnswerDecoder(kinds.header), by_block, AnswerDecoder(kinds.receipt), by_block
    )
