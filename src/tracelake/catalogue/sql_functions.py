"""Which functions a query may call: everything else that Spark knows is refused.

What is here is a function of its arguments alone. Not here, on purpose: what runs code (`reflect`, `java_method`), what
reads files or names them (`input_file_name`), what tells of the session (`current_user`, `version`), what stops a task
(`raise_error`, `assert_true`), and what gives another answer the next time (`now`, `rand`, `uuid`): a task that is
tried again has to write the same rows.
"""

GROUPS: dict[str, str] = {
    "Aggregates": """
        any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor bool_and
        bool_or collect_list collect_set corr count count_if count_min_sketch covar_pop covar_samp every first
        first_value grouping grouping_id histogram_numeric kurtosis last last_value listagg max max_by mean
        median min min_by mode percentile percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy
        regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev
        stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop var_samp variance""",
    "Windows": "cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number",
    "Conditions": """
        coalesce equal_null greatest if ifnull isnan isnotnull isnull least nanvl nullif nullifzero nvl nvl2
        zeroifnull""",
    "Numbers": """
        abs acos acosh asin asinh atan atan2 atanh bin bit_count bit_get bround cbrt ceil ceiling conv cos cosh
        cot csc degrees div e exp expm1 factorial floor getbit hex hypot ln log log10 log1p log2 mod negative pi
        pmod positive pow power radians rint round sec shiftleft shiftright shiftrightunsigned sign signum sin
        sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract unhex width_bucket""",
    "Text and bytes": """
        ascii base64 bit_length btrim char_length character_length chr concat concat_ws contains crc32 decode
        elt encode endswith find_in_set format_number format_string initcap instr is_valid_utf8 lcase left len
        length levenshtein locate lower lpad ltrim make_valid_utf8 mask md5 octet_length overlay position printf
        quote regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace
        regexp_substr repeat replace reverse right rpad rtrim sha sha1 sha2 soundex space split split_part
        startswith string substr substring substring_index to_binary to_char to_number to_varchar translate trim
        try_to_binary try_to_number try_validate_utf8 ucase unbase64 upper url_decode url_encode xxhash64""",
    "Dates and times": """
        add_months convert_timezone date date_add date_diff date_format date_from_unix_date date_part date_sub
        date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime
        from_utc_timestamp hour last_day make_date make_dt_interval make_interval make_timestamp
        make_timestamp_ltz make_timestamp_ntz make_ym_interval minute month monthname months_between next_day
        quarter second timestamp timestamp_micros timestamp_millis timestamp_seconds timestampadd timestampdiff
        to_date to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp trunc
        try_make_timestamp try_to_date try_to_timestamp unix_date unix_micros unix_millis unix_seconds weekday
        weekofyear year""",
    "Arrays, maps and structs": """
        aggregate array array_append array_compact array_contains array_distinct array_except array_insert
        array_intersect array_join array_max array_min array_position array_prepend array_remove array_repeat
        array_size array_sort array_union arrays_overlap arrays_zip cardinality element_at exists filter flatten
        forall get map map_concat map_contains_key map_entries map_filter map_from_arrays map_from_entries
        map_keys map_values map_zip_with named_struct reduce sequence size slice sort_array str_to_map struct
        transform transform_keys transform_values try_element_at zip_with""",
    "JSON": """
        from_json get_json_object json_array_length json_object_keys parse_json schema_of_json to_json
        try_parse_json try_variant_get variant_get""",
    "Types and hashes": """
        bigint binary boolean decimal double float hash int smallint tinyint typeof""",
    "Generators": "explode explode_outer inline inline_outer posexplode posexplode_outer stack",
}
FUNCTIONS: frozenset[str] = frozenset(name for names in GROUPS.values() for name in names.split())
GENERATORS: frozenset[str] = frozenset(GROUPS["Generators"].split())

UNIT_FIRST: frozenset[str] = frozenset(
    {"dateadd", "date_add", "datediff", "date_diff", "timestampadd", "timestampdiff"}
)
"""With three arguments, the first is the name of a unit."""
UNITS: frozenset[str] = frozenset(
    f"{unit}{plural}"
    for unit in ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")
    for plural in ("", "S")
) | {"DAYOFYEAR"}
INTERVAL_UNITS: frozenset[str] = UNITS - {"QUARTER", "QUARTERS", "DAYOFYEAR"}
EXTRACTED: frozenset[str] = UNITS | {"DOW", "DOW_ISO", "DOY", "DAYOFWEEK", "DAYOFWEEK_ISO", "YEAROFWEEK"}

SIZES: dict[str, int] = {"array_repeat": 1, "lpad": 1, "repeat": 1, "rpad": 1, "space": 0}
"""How large the result becomes, by the place of the argument that says it: a plain number, and a small one."""
MAX_SIZE = 100_000
MAX_SEQUENCE = 1_000_000

BARE_NAMES: frozenset[str] = frozenset(
    [
        "current_catalog",
        "current_database",
        "current_date",
        "current_path",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_timezone",
        "current_user",
        "localtime",
        "localtimestamp",
        "now",
        "session_user",
        "user",
    ]
)
"""What Spark takes for a function when it finds no column of that name. Behind a table's name it is a column."""

INSTEAD: dict[str, str] = {
    "current_date": "A task must give the same rows when it is tried again: use a column, or `${start}`.",
    "current_timestamp": "A task must give the same rows when it is tried again: use a column.",
    "input_file_name": "Files are not seen: join on what is in the rows.",
    "monotonically_increasing_id": "Use `row_number() OVER (ORDER BY ...)`.",
    "now": "A task must give the same rows when it is tried again: use a column.",
    "rand": "A task must give the same rows when it is tried again: use `hash(column)`.",
    "random": "A task must give the same rows when it is tried again: use `hash(column)`.",
    "range": "Use `explode(sequence(first, last))`.",
    "uuid": "A task must give the same rows when it is tried again: use `sha2` of a key.",
    "cast": "Write `CAST(value AS type)`.",
}


def functions_markdown() -> str:
    """The reference page."""
    lines = [
        "# Functions in queries",
        "",
        "Generated from `tracelake.catalogue.sql_functions`; do not edit by hand (`make docs`).",
        "",
        "What a query of [spark_sql](../operators/spark_sql.md) may call. Spark's own manual says what each does;",
        "every other function is refused when the DAG is deployed.",
        "",
        "| group | functions |",
        "|---|---|",
    ]
    for group, names in GROUPS.items():
        lines.append(f"| {group} | {', '.join(f'`{name}`' for name in sorted(names.split()))} |")
    sizes = ", ".join(f"`{name}`" for name in sorted(SIZES))
    lines += [
        "",
        f"The length that {sizes} are given must be a plain number of at most {MAX_SIZE:,}; `sequence` of plain",
        f"numbers has at most {MAX_SEQUENCE:,} items.",
        "",
        "Not columns, unless a table's name stands before them, because Spark takes them for functions: "
        + ", ".join(f"`{name}`" for name in sorted(BARE_NAMES))
        + ".",
    ]
    return "\n".join(lines) + "\n"
