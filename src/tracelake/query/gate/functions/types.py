"""Types that a query may name. Others come from extensions, hold states, or name entries of a catalogue."""

import re

from tracelake.query.gate.word_sets import words

MAX_ARRAY = 10_000
SCALAR_TYPES = words(
    """bigint bignum binary blob bool boolean bpchar bytea char date datetime dec decimal double float float4 float8
    guid hugeint int int1 int128 int16 int2 int32 int4 int64 int8 integer integral interval json logical long numeric
    nvarchar real short signed smallint string text time timestamp timestamp_ms timestamp_ns timestamp_s timestamp_us
    timestamptz timetz tinyint ubigint uhugeint uint128 uint16 uint32 uint64 uint8 uinteger usmallint utinyint uuid
    varbinary varchar varint"""
) | {"time with time zone", "timestamp with time zone", "double precision", "character varying"}
NESTED_TYPES = frozenset({"list", "array", "struct", "row", "map"})
_PLAIN = re.compile(r"([a-z0-9_ ]+?)(?:\((\d{1,3})(?:, ?(\d{1,3}))?\))?((?:\[\])*)")


def is_plain_type(text: str) -> bool:
    """A scalar type, with its digits and with brackets for lists, as JSON structures have it."""
    match = _PLAIN.fullmatch(text.strip().lower())
    return match is not None and match[1] in SCALAR_TYPES
