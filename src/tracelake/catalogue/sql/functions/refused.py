"""Functions of Spark that queries may not call, each with the reason. A test walks Spark's registry: what is neither
here nor in `signatures` fails it, so a new Spark brings no function that nobody looked at.
"""

_GROUPS: dict[str, str] = {
    "runs code that the query names": "java_method reflect try_reflect",
    "reads files, or tells of them": """
        from_protobuf input_file_block_length input_file_block_start input_file_name python_worker_logs to_protobuf""",
    "tells of the session, not of the rows": """
        collations current_catalog current_database current_path current_schema current_timezone current_user
        session_user spark_partition_id sql_keywords user version""",
    "gives another answer when the task is tried again": """
        curdate current_date current_time current_timestamp localtime localtimestamp monotonically_increasing_id now
        rand randn random randstr shuffle uniform unix_timestamp uuid""",
    "fails the task on purpose": "assert_true raise_error validate_utf8",
    "parses a language that the gate has no parser for": """
        approx_top_k approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate from_avro from_csv from_xml
        json_tuple parse_url schema_of_avro schema_of_csv schema_of_variant schema_of_variant_agg schema_of_xml
        sentences to_avro to_csv to_xml try_parse_url variant_array_append variant_delete variant_insert variant_set
        try_variant_array_append try_variant_insert try_variant_set xpath xpath_boolean xpath_double xpath_float
        xpath_int xpath_long xpath_number xpath_short xpath_string""",
    "reads bytes of a sketch, which a query could forge, with native or unsafe code": """
        bitmap_and_agg bitmap_bit_position bitmap_bucket_number bitmap_construct_agg bitmap_count bitmap_or_agg
        hll_sketch_agg hll_sketch_estimate hll_union hll_union_agg kll_merge_agg_bigint kll_merge_agg_double
        kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint
        kll_sketch_get_n_double kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
        kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float
        kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint
        kll_sketch_to_string_double kll_sketch_to_string_float st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid
        st_srid theta_difference theta_intersection theta_intersection_agg theta_sketch_agg theta_sketch_estimate
        theta_union theta_union_agg tuple_difference_double tuple_difference_integer tuple_difference_theta_double
        tuple_difference_theta_integer tuple_intersection_agg_double tuple_intersection_agg_integer
        tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double
        tuple_intersection_theta_integer tuple_sketch_agg_double tuple_sketch_agg_integer tuple_sketch_estimate_double
        tuple_sketch_estimate_integer tuple_sketch_summary_double tuple_sketch_summary_integer
        tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_agg_double tuple_union_agg_integer
        tuple_union_double tuple_union_integer tuple_union_theta_double tuple_union_theta_integer""",
    "needs a key, which would stand in the DAG": "aes_decrypt aes_encrypt hmac try_aes_decrypt",
    "makes a type that no output can hold": """
        make_time time time_bucket time_diff time_from_micros time_from_millis time_from_seconds time_to_micros
        time_to_millis time_to_seconds time_trunc timestamp_nanos to_time to_variant_object try_to_time unix_nanos
        variant_explode variant_explode_outer variant_strip_nulls is_valid_variant is_variant_null collate collation""",
    "is made for streams or metric views": "counter_diff measure session_window window window_time",
    "is quadratic in its texts, and nobody asked for it": "jaro_winkler_similarity",
    "is rare, and nobody has checked its arguments and its cost yet": """
        char collect_union from_base32 luhn_check to_base32 try_make_interval try_make_timestamp_ltz
        try_make_timestamp_ntz try_url_decode vector_avg vector_cosine_similarity vector_inner_product
        vector_l2_distance vector_norm vector_normalize vector_sum""",
    "is read as a relation: use `explode(sequence(first, last))`": "range",
    "is an operator or a word of the grammar, and is written as one": """
        ! != % & * + - / < << <= <=> <> = == > >= >> >>> ^ | || ~ and between case cast ilike in like not or regexp
        rlike when""",
}

REFUSED: dict[str, str] = {name: reason for reason, names in _GROUPS.items() for name in names.split()}
"""The reason by the function's name, in small letters."""
