"""Every function that a query may call, with the kind of each argument and the size of its result.

An entry is `(kind, kind?, ...) result: names`. `?` marks an optional argument; `...` repeats the last kind, `...2` the
last two. A function with two forms stands in two entries. `kinds` defines the kinds. The result tells `cost` how
large a value comes out: `one` (a number, a date), `most` (as large as the largest argument), `sum` (as all arguments
together), `x2`, `x6` (that often the sum), `product` (of all arguments), `joined` (the first argument, with the others
between its parts), `made` (as large as the number it is given), `rows` (all rows of a group).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tracelake.catalogue.sql.functions.kinds import KINDS, ArgumentKind

_GROUPS = {
    "Aggregates": """
        (share) one: percentile_cont percentile_disc
        (value) most: max min
        (value) one: any avg bit_and bit_or bit_xor bool_and bool_or count_if every grouping kurtosis mean median
            skewness some std stddev stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance
        (value) rows: array_agg collect_list collect_set
        (value, bins) one: histogram_numeric
        (value, delimiter?) rows: listagg string_agg
        (value, error?) one: approx_count_distinct
        (value, flag?) most: any_value first first_value last last_value
        (value, value) one: corr covar_pop covar_samp regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope
            regr_sxx regr_sxy regr_syy
        (value?, ...) one: count grouping_id
        (value?, flag?) most: mode
        (value, share, accuracy?) one: approx_percentile percentile_approx
        (value, share, value?) one: percentile
        (value, value, top?) most: max_by min_by
        (value, epsilon, confidence, seed) one: count_min_sketch""",
    "Windows": """
        () one: cume_dist row_number
        (rank) one: ntile
        (value?, ...) one: dense_rank percent_rank rank
        (value, offset?, value?) most: lag lead
        (value, rank, flag?) most: nth_value""",
    "Conditions": """
        (value) one: isnan isnotnull isnull nullifzero zeroifnull
        (value, ...) most: coalesce greatest least
        (value, value) most: ifnull nullif nvl
        (value, value) one: equal_null nanvl
        (value, value, value) most: if nvl2""",
    "Numbers": """
        () one: e pi
        (value) most: unhex
        (value) one: abs acos acosh asin asinh atan atanh bin bit_count cbrt cos cosh cot csc degrees exp expm1
            factorial ln log10 log1p log2 negative positive radians rint sec sign signum sin sinh sqrt tan tanh
        (value) x2: hex
        (value, scale?) one: bround ceil ceiling floor round
        (value, value) one: atan2 bit_get div getbit hypot mod pmod pow power shiftleft shiftright shiftrightunsigned
            try_add try_divide try_mod try_multiply try_subtract
        (value, value?) one: log
        (value, value, value) one: conv
        (value, value, value, value) one: width_bucket""",
    "Text and bytes": """
        (size) made: space
        (value) most: initcap lcase lower reverse try_validate_utf8 ucase unbase64 upper url_decode
        (value) one: ascii bit_length char_length character_length chr crc32 is_valid_utf8 len length md5 octet_length
            sha sha1 soundex
        (value) x2: base64 quote string
        (value) x6: make_valid_utf8 url_encode
        (value, ...) one: xxhash64
        (value, binary_format?) most: to_binary try_to_binary
        (value, char_format) x2: to_char to_varchar
        (value, charset) sum: decode
        (value, charset) x6: encode
        (value, decimals) one: format_number
        (value, number_format) one: to_number try_to_number
        (value, pattern) most: regexp_substr
        (value, pattern) one: regexp_count regexp_like
        (value, size) product: repeat
        (value, value) most: left right
        (value, value) one: contains endswith find_in_set sha2 startswith
        (value, value?) most: btrim ltrim rtrim trim
        (value?, ...) sum: concat
        (printf, value?, ...) x6: format_string printf
        (value, pattern, group?) most: regexp_extract
        (value, pattern, group?) one: regexp_instr
        (value, pattern, group?) sum: regexp_extract_all
        (value, pattern, limit?) sum: split
        (value, size, value?) made: lpad rpad
        (value, value, ...) most: elt
        (value, value, value) most: split_part substring_index
        (value, value, value) x6: translate
        (value, value, value?) joined: replace
        (value, value, value?) most: substr substring
        (value, value, value?) one: levenshtein locate position
        (value, value?, ...) joined: concat_ws
        (value, pattern, replacement, rank?) joined: regexp_replace
        (value, value, value, value?) sum: overlay
        (value, value, value?, value?) one: instr
        (value, value, value, value?, ...) most: decode
        (value, value?, value?, value?, value?) x6: mask""",
    "Dates and times": """
        (value) one: date date_from_unix_date day dayname dayofmonth dayofweek dayofyear hour last_day minute month
            monthname quarter second timestamp timestamp_micros timestamp_millis timestamp_seconds unix_date unix_micros
            unix_millis unix_seconds weekday weekofyear year
        (part, value) one: date_part datepart extract
        (truncation, value) one: date_trunc
        (value, datetime) one: date_format
        (value, datetime?) one: from_unixtime to_date to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
            try_to_date try_to_timestamp
        (value, truncation) one: trunc
        (value, value) one: add_months date_add date_diff date_sub dateadd datediff make_timestamp_ntz
        (value, value?) one: make_timestamp try_make_timestamp
        (value, weekday) one: next_day
        (value, zone) one: from_utc_timestamp to_utc_timestamp
        (value?, value?) one: make_ym_interval
        (zone, value) one: convert_timezone
        (unit, value, value) one: date_add date_diff dateadd datediff timestampadd timestampdiff
        (value, value, flag?) one: months_between
        (value, value, value) one: make_date
        (value, value, zone) one: make_timestamp try_make_timestamp
        (value, value, zone?) one: make_timestamp_ltz
        (zone, zone, value) one: convert_timezone
        (value?, value?, value?, value?) one: make_dt_interval
        (value, value, value, value, value, value) one: make_timestamp_ntz
        (value, value, value, value, value, value, zone?) one: make_timestamp make_timestamp_ltz try_make_timestamp
        (value?, value?, value?, value?, value?, value?, value?) one: make_interval""",
    "Arrays, maps and structs": """
        (value) most: array_max array_min
        (value) one: array_size cardinality size
        (value) sum: array_compact array_distinct flatten map_entries map_from_entries map_keys map_values
        (value, ...) sum: arrays_zip
        (value, flag?) sum: sort_array
        (value, lambda) one: exists forall
        (value, lambda) sum: filter map_filter transform transform_keys transform_values
        (value, lambda?) sum: array_sort
        (value, size) product: array_repeat
        (value, value) most: array_remove element_at get try_element_at
        (value, value) one: array_contains array_position arrays_overlap map_contains_key
        (value, value) sum: array_append array_except array_intersect array_prepend array_union map_from_arrays
        (value?, ...) sum: array map map_concat struct
        (field, value, ...2) sum: named_struct
        (value, end, value?) made: sequence
        (value, pattern?, pattern?) x2: str_to_map
        (value, position, value) sum: array_insert
        (value, value, lambda) sum: map_zip_with zip_with
        (value, value, value) sum: slice
        (value, value, value?) joined: array_join
        (value, value, lambda, lambda?) sum: aggregate reduce""",
    "JSON": """
        (value) one: json_array_length
        (value) sum: json_object_keys parse_json try_parse_json
        (json, options?) sum: schema_of_json
        (value, json_path) x2: get_json_object
        (value, options?) x6: to_json
        (value, schema, options?) x2: from_json
        (value, variant_path, type?) sum: try_variant_get variant_get""",
    "Types and hashes": """
        (value) most: binary
        (value) one: bigint boolean decimal double float int smallint tinyint typeof
        (value, ...) one: hash""",
    "Generators": """
        (value) sum: explode explode_outer inline inline_outer posexplode posexplode_outer
        (rows, value, ...) sum: stack""",
}
_ENTRY = re.compile(r"\((?P<kinds>[^)]*)\) (?P<result>\w+):(?P<names>[^(]+)")


@dataclass(frozen=True, slots=True)
class Signature:
    """One form of a function."""

    name: str
    kinds: tuple[ArgumentKind, ...]
    least: int
    """Number of required arguments."""
    repeated: int
    """Number of the last kinds that repeat."""
    result: str

    def kinds_of(self, count: int) -> tuple[ArgumentKind, ...] | None:
        """The kind of each of `count` arguments; None: the form does not take that many."""
        if count < self.least:
            return None
        if count <= len(self.kinds):
            return self.kinds[:count]
        more = count - len(self.kinds)
        if not self.repeated or more % self.repeated:
            return None
        return self.kinds + self.kinds[-self.repeated :] * (more // self.repeated)

    def __str__(self) -> str:
        parts = [kind.name + ("?" if index >= self.least else "") for index, kind in enumerate(self.kinds)]
        return f"{self.name}({', '.join(parts + ['...'] * bool(self.repeated))})"


def _read(entries: str) -> Iterator[Signature]:
    assert not _ENTRY.sub("", entries).strip(), entries
    for entry in _ENTRY.finditer(entries):
        words = [word.strip() for word in entry["kinds"].split(",") if word.strip()]
        repeated = 0
        if words and words[-1].startswith("..."):
            repeated = int(words.pop().removeprefix("...") or 1)
        least = sum(not word.endswith("?") for word in words)
        kinds = tuple(KINDS[word.removesuffix("?")] for word in words)
        for name in entry["names"].split():
            yield Signature(name, kinds, least, repeated, entry["result"])


GROUPS: dict[str, tuple[Signature, ...]] = {
    group: tuple(sorted(_read(entries), key=lambda signature: signature.name)) for group, entries in _GROUPS.items()
}
SIGNATURES: dict[str, tuple[Signature, ...]] = {}
for _signature in (item for items in GROUPS.values() for item in items):
    SIGNATURES[_signature.name] = (*SIGNATURES.get(_signature.name, ()), _signature)
AGGREGATES: frozenset[str] = frozenset(item.name for item in GROUPS["Aggregates"])
GENERATORS: frozenset[str] = frozenset(item.name for item in GROUPS["Generators"])
