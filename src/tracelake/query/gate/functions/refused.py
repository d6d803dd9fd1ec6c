"""Functions that a query may not call, each with the reason: by name, or by a rule for a family.

A test walks the registry of the pinned DuckDB: what is neither here nor in `signatures` fails it, so a new version
brings no function that nobody looked at.
"""

import re

_RULES: tuple[tuple[str, str], ...] = (
    (r"read_.*|parquet_.*|.*_scan(_dumb)?|glob|sniff_csv|.*copy_to_.*", "it reads files"),
    (r"duckdb_.*|pragma_.*|pg_.*|has_\w+_privilege|.*_description", "it reads the catalogue of the engine"),
    (r"inet_.*|current_(catalog|database|schema|schemas|role|user|query|setting|\w+_id)", "it tells of the session"),
    (r"__.*|\w+_byte_comparable|(icu_)?collate_\w+|icu_\w+", "it is internal to the engine"),
    (r"variant_.*|st_.*|enum_.*|union_.*", "its type cannot be a result"),
    (r"json_(serialize|deserialize|execute)_.*", "it handles SQL as data"),
    (r"(enable|disable)_.*|.*checkpoint.*|verify_.*|.*external_resource.*", "it changes the engine"),
)
_GROUPS: dict[str, str] = {
    "it runs SQL that the gate does not see": "query query_table",
    "it reads files": "python_map_function which_secret",
    "it reads the catalogue of the engine": """
        collations copy_database database_list database_size extension_versions format_pg_type format_type functions
        get_block_size import_database in_search_path map_to_pg_oid metadata_info platform show show_databases
        show_tables show_tables_expanded storage_info summary table_info test_all_types test_vector_types
        truncate_duckdb_logs user_agent histogram_values add_parquet_key""",
    "it tells of the session": "getvariable session_user txid_current user version",
    "it changes the engine": "currval nextval setseed setval write_log",
    "it waits": "sleep_ms",
    "it fails on purpose": "assert_true error",
    "it handles paths of files": """
        hive_partition_component parse_dirname parse_dirpath parse_duckdb_log_message parse_filename parse_path
        path_join""",
    "it reads a state that a query could forge": """
        combine combine_aggr decimal_average decimal_division finalize is_histogram_other_bin to_aggregate_state""",
    "it is internal to the engine": """
        alias can_cast_implicitly cast_to_type constant_or_null create_sort_key get_type index_key invoke make_type
        json_copy_strftime_if_date json_copy_strftime_if_timestamp pandas_scan remap_struct replace_type seq_scan stats
        sum_no_overflow unpivot_list vector_type vertex_extract""",
    "it sizes its state by its values": "bitstring bitstring_agg lttb repeat_row",
    "nobody has checked its arguments and its cost yet": """
        generate_subscripts json_deep_merge json_insert json_merge_patch_diff json_normalize
        json_remove json_replace json_set switch uuid_extract_timestamp uuid_extract_version""",
    "it is an operator, and is written as one": "!= < <= = > >= is\\_distinct\\_from is\\_not\\_distinct\\_from",
}
_BY_NAME = {name.replace("\\_", " "): reason for reason, names in _GROUPS.items() for name in names.split()}
_PATTERNS = tuple((re.compile(pattern), reason) for pattern, reason in _RULES)
_TABLES = {"repeat": "it sizes its state by its values", "histogram": "it reads a relation by its name as a text"}


def reason_against(name: str, *, table: bool = False) -> str | None:
    """Why the function is refused; None if there is no such function."""
    lower = name.lower()
    if table and lower in _TABLES:
        return _TABLES[lower]
    if lower in _BY_NAME:
        return _BY_NAME[lower]
    return next((reason for pattern, reason in _PATTERNS if pattern.fullmatch(lower)), None)
