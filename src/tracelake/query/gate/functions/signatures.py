"""Every function that a query may call, with the kind of each argument.

An entry is `(kind, kind?, ...): names`. `?` marks an optional argument and `...` repeats the last kind. A function with
two forms stands in two entries. `kinds` defines the kinds. A name in `_NAMED` takes arguments by name.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tracelake.query.gate.functions.kinds import KINDS

_AGGREGATES = """
    (): count_star
    (value?): count mode
    (value): any_value approx_count_distinct arbitrary array_agg avg bit_and bit_or bit_xor bool_and bool_or count_if
        countif entropy favg first fsum geomean geometric_mean histogram json_group_array json_group_structure kahan_sum
        kurtosis kurtosis_pop last list mad mean median product sem skewness stddev stddev_pop stddev_samp sum sumkahan
        var_pop var_samp variance
    (value, value): histogram histogram_exact
    (value, count?): max min
    (value, value, count?): arg_max arg_max_null arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last argmax
        argmin max_by min_by
    (value, value): corr covar_pop covar_samp json_group_object regr_avgx regr_avgy regr_count regr_intercept regr_r2
        regr_slope regr_sxx regr_sxy regr_syy wavg weighted_avg
    (value, word?): group_concat listagg string_agg
    (value, share): approx_quantile quantile quantile_cont quantile_disc
    (share): quantile_cont quantile_disc
    (value, share, count?): reservoir_quantile
    (value, count): approx_top_k"""
_WINDOWS = """
    (): cume_dist dense_rank percent_rank rank rank_dense row_number
    (value): fill first_value last_value ntile
    (value, value): nth_value
    (value, value?, value?): lag lead"""
_OPERATORS = """
    (value): ~ @ !__postfix
    (value, value?): + -
    (value, value): * / // % ** ^ || & | << >> ^@ && <@ @> ->> <-> <=>
    (value, like): ~~ !~~ ~~* !~~*
    (value, glob): ~~~
    (value, like, word): like_escape not_like_escape ilike_escape not_ilike_escape"""
_NUMBERS = """
    (): pi random
    (value): abs acos acosh asin asinh atan atanh bin cbrt ceil ceiling cos cosh cot degrees even exp factorial floor
        gamma isfinite isinf isnan lgamma ln log10 log2 radians sign signbit sin sinh sqrt tan tanh to_binary
    (value, value?): log round trunc
    (value, value): add atan2 binom divide fdiv fmod gcd greatest_common_divisor lcm least_common_multiple mod multiply
        nextafter pow power round_even roundbankers subtract xor
    (value, ...): greatest least
    (value, value, size?): to_base
    (value, value, value, size?): bar
    (value, value, count, value): equi_width_bins"""
_TEXT = """
    (value): ascii base64 bit_count bit_length char_length character_length chr decode encode format_bytes
        formatReadableDecimalSize formatReadableSize from_base64 from_binary from_hex hex lcase len length
        length_grapheme lower md5 md5_number md5_number_lower md5_number_upper nfc_normalize octet_length ord
        parse_formatted_bytes regexp_escape reverse sha1 sha256 strip_accents strlen to_base64 to_hex ucase unbin unhex
        unicode upper url_decode url_encode
    (value, value): array_to_string_comma_default contains damerau_levenshtein editdist3 ends_with get_bit hamming instr
        jaccard left left_grapheme levenshtein mismatches position prefix right right_grapheme split starts_with
        str_split string_split string_to_array strpos suffix bit_position
    (value, value?): jaro_similarity jaro_winkler_similarity ltrim rtrim trim array_to_string
    (value, value, value?): jaro_similarity jaro_winkler_similarity substr substring substring_grapheme
    (value, value, value): replace split_part translate set_bit
    (value, value, value, value?): overlay
    (value, ...): concat concat_ws
    (value, size): repeat
    (value, size, value): lpad rpad
    (template, value?, ...): format printf
    (value, pattern, word?): regexp_matches regexp_full_match regexp_split_to_array regexp_split_to_table
        str_split_regex string_split_regex
    (value, pattern, literal?, word?): regexp_extract regexp_extract_all
    (value, pattern, word, word?): regexp_replace"""
_TIMES = """
    (): current_date current_localtime current_localtimestamp get_current_time get_current_timestamp now today
        transaction_timestamp
    (value): ago century day dayname dayofmonth dayofweek dayofyear days_in_month decade epoch epoch_ms epoch_ns
        epoch_us era hour isodow isoyear julian last_day make_timestamp make_timestamp_ms make_timestamp_ns
        make_timestamptz
        microsecond millennium millisecond minute month monthname nanosecond normalized_interval quarter second
        timezone_hour timezone_minute to_centuries to_days to_decades to_hours to_microseconds to_millennia
        to_milliseconds to_minutes to_months to_quarters to_seconds to_timestamp to_weeks to_years week weekday
        weekofyear year yearweek
    (value, value?): age
    (value, value, value): make_date make_time
    (value, value, value, value, value, value): make_timestamp
    (value, value): date_add
    (part, value): date_part date_trunc datepart datetrunc
    (part, value, value): date_diff date_sub datediff datesub
    (value, format): strftime strptime try_strptime
    (value, value, value?): time_bucket
    (zone, value): timezone"""
_NESTED = """
    (value): array_distinct array_pop_back array_pop_front array_reverse array_unique array_value
        cardinality flatten len list_any_value list_approx_count_distinct list_avg list_bit_and list_bit_or list_bit_xor
        list_bool_and list_bool_or list_count list_distinct list_entropy list_first list_histogram list_kurtosis
        list_kurtosis_pop list_last list_mad list_max list_median list_min list_mode list_product list_reverse list_sem
        list_skewness list_stddev_pop list_stddev_samp list_sum list_unique list_var_pop list_var_samp map_entries
        map_from_entries map_keys map_values struct_keys struct_values
    (value, value): array_append array_contains array_cosine_distance array_cosine_similarity array_cross_product
        array_distance array_dot_product array_extract array_has array_has_all array_has_any array_indexof
        array_inner_product array_intersect array_negative_dot_product array_negative_inner_product array_position
        array_prepend array_push_back array_push_front array_select array_where element_at list_append list_contains
        list_cosine_distance list_cosine_similarity list_distance list_dot_product list_element list_extract list_has
        list_has_all list_has_any list_indexof list_inner_product list_intersect list_negative_dot_product
        list_negative_inner_product list_position list_prepend list_select list_where map_contains map_contains_value
        map_extract map_extract_value struct_contains struct_extract struct_extract_at struct_has struct_indexof
        struct_position
    (value, value?): array_length
    (value, word?): list_string_agg
    (value, value, value): map_contains_entry
    (value, value, value, value?): array_slice list_slice
    (value, word?, word?): array_grade_up array_sort grade_up list_grade_up list_sort
    (value, word?): array_reverse_sort list_reverse_sort
    (value, size, value?): array_resize list_resize
    (value, aggregate, literal?, ...): aggregate array_aggr array_aggregate list_aggr list_aggregate
    (value, lambda): apply array_apply array_filter array_transform filter list_apply list_filter list_transform
    (value, lambda, value?): array_reduce list_reduce reduce
    (value?, ...): array_cat array_concat array_zip list_cat list_concat list_pack list_value list_zip map map_concat
        row struct_concat struct_insert struct_pack struct_update
    (value, value?, value?): generate_series range
    (value, value?): unnest"""
_JSON = """
    (value): array_to_json json json_pretty json_quote json_structure json_valid row_to_json to_json json_strip_nulls
    (value, value?): json_array_length json_keys json_type
    (value, value): json_contains json_exists json_extract json_extract_path json_extract_path_text json_extract_string
        json_value
    (value, value, ...): json_merge_patch
    (value?, ...): json_array json_object
    (value, structure): from_json from_json_strict json_transform json_transform_strict"""
_OTHERS = """
    (): gen_random_uuid uuid uuidv4 uuidv7
    (value): typeof
    (value, ...): hash
    (value, value): nullif
    (value, value, value): if"""
_TABLES = """
    (value, value?, value?): generate_series range
    (value, value?): json_each json_tree unnest"""
_NAMED = frozenset({"row", "struct_insert", "struct_pack", "struct_update", "unnest", "json_object"})
NAMED_OPTIONS = {"unnest": frozenset({"recursive", "max_depth"})}
"""Names that a function takes; for the others a name is the name of a field."""
_ENTRY = re.compile(r"\(([^)]*)\): ([^()]+?)(?=\s*\([a-z?., ]*\):|\s*$)")


@dataclass(frozen=True, slots=True)
class CallForm:
    """One form of a function."""

    kinds: tuple[str, ...]
    required: int
    repeats: bool
    takes_names: bool

    def kinds_of(self, count: int) -> tuple[str, ...] | None:
        """The kind of each of `count` arguments; None if the form does not take so many."""
        if count < self.required or (count > len(self.kinds) and not self.repeats):
            return None
        return (self.kinds + self.kinds[-1:] * (count - len(self.kinds)))[:count]


def _read(*tables: str) -> dict[str, tuple[CallForm, ...]]:
    forms: dict[str, tuple[CallForm, ...]] = {}
    for table in tables:
        for name, kinds in _entries(table):
            repeats = kinds[-1:] == ("...",)
            own_kinds = kinds[:-1] if repeats else kinds
            plain = tuple(kind.rstrip("?") for kind in own_kinds)
            assert all(kind in KINDS for kind in plain), (name, plain)
            required = sum(not kind.endswith("?") for kind in own_kinds)
            forms[name] = (*forms.get(name, ()), CallForm(plain, required, repeats, name in _NAMED))
    return forms


def _entries(table: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    end = 0
    for match in _ENTRY.finditer(table):
        assert not table[end : match.start()].strip(), table[end : match.start()]
        end = match.end()
        kinds = tuple(kind.strip() for kind in match[1].split(",") if kind.strip())
        for name in match[2].split():
            yield name.lower(), kinds
    assert not table[end:].strip(), table[end:]


AGGREGATES = frozenset(_read(_AGGREGATES))
WINDOWS = frozenset(_read(_WINDOWS))
SIGNATURES = _read(_AGGREGATES, _WINDOWS, _OPERATORS, _NUMBERS, _TEXT, _TIMES, _NESTED, _JSON, _OTHERS)
"""Functions of expressions, by their names in small letters."""
TABLE_SIGNATURES = _read(_TABLES)
"""Functions of FROM."""
GROUPS = {
    "Aggregates": _read(_AGGREGATES),
    "Windows": _read(_WINDOWS),
    "Operators": _read(_OPERATORS),
    "Numbers": _read(_NUMBERS),
    "Text and bytes": _read(_TEXT),
    "Dates and times": _read(_TIMES),
    "Lists, maps and structs": _read(_NESTED),
    "JSON": _read(_JSON),
    "Others": _read(_OTHERS),
    "In FROM": TABLE_SIGNATURES,
}
"""The same for people, by purpose."""
