--- query function | query_not_allowed
SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')

--- query with built text | query_not_allowed
SELECT * FROM query('SELECT ' || '1')

--- query of a subquery | query_not_allowed
SELECT * FROM query((SELECT author FROM blocks LIMIT 1))

--- query with a parameter | query_not_allowed
SELECT * FROM query($token)

--- query_table | query_not_allowed
SELECT * FROM query_table('blocks')

--- query_table of a list | query_not_allowed
SELECT * FROM query_table(['blocks', 'secrets'])

--- query_table of a parameter | query_not_allowed
SELECT * FROM query_table($token)

--- query_table of a file | query_not_allowed
SELECT * FROM query_table('/etc/passwd')

--- query_table in capitals | query_not_allowed
SELECT * FROM QUERY_TABLE('blocks')

--- query in quotes | query_not_allowed
SELECT * FROM "query"('SELECT 1')

--- json_execute_serialized_sql | query_not_allowed
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))

--- json_serialize_sql | query_not_allowed
SELECT json_serialize_sql('SELECT 1')

--- json_deserialize_sql | query_not_allowed
SELECT json_deserialize_sql('{}')

--- json_serialize_plan | query_not_allowed
SELECT json_serialize_plan('SELECT * FROM blocks')

--- PRAGMA json_execute | query_not_allowed
PRAGMA json_execute_serialized_sql('{}')

--- PREPARE | query_not_allowed
PREPARE p AS SELECT * FROM blocks

--- EXECUTE | query_not_allowed
EXECUTE p(1)

--- DEALLOCATE | query_not_allowed
DEALLOCATE p

--- PREPARE with a name like a function | query_not_allowed
PREPARE abs AS SELECT 1

--- macro as a function | query_unknown_function
SELECT my_macro(1)

--- table macro | query_unknown_function
SELECT * FROM my_table_macro(1)

--- histogram_values of a relation by text | query_not_allowed
SELECT * FROM histogram_values('blocks', 'author')

--- histogram of a relation by text | query_not_allowed
SELECT * FROM histogram('blocks', 'author')

--- duckdb_profiling_settings | query_not_allowed
SELECT * FROM duckdb_profiling_settings()

--- aggregate by a computed name | query_not_allowed
SELECT list_aggregate([1, 2], 'su' || 'm')

--- aggregate by the name of a column | query_not_allowed
SELECT list_aggregate([1, 2], author) FROM blocks

--- aggregate by the name of a reader | query_not_allowed
SELECT list_aggregate(['/etc/passwd'], 'read_text')

--- aggregate by an internal name | query_not_allowed
SELECT list_aggr([1], 'sum_no_overflow')

--- aggregate by an unknown name | query_not_allowed
SELECT array_aggregate([1], 'x; DROP TABLE blocks')

--- aggregate by a parameter | query_not_allowed
SELECT list_aggregate([1, 2], $token)

--- cast to a computed type | query_not_allowed
SELECT cast_to_type('1', 2)

--- make_type | query_not_allowed
SELECT make_type('INTEGER')

--- get_type | query_not_allowed
SELECT get_type(1)

--- replace_type | query_not_allowed
SELECT replace_type(1, 2, 3)

--- invoke a lambda | query_not_allowed
SELECT invoke(lambda x: x, 1)

--- from_json with a computed structure | query_not_allowed
SELECT from_json(extra, author) FROM blocks

--- from_json with an unknown type | query_not_allowed
SELECT from_json('{}', '{"a":"AGGREGATE_STATE"}')

--- from_json with an enum | query_not_allowed
SELECT from_json('{}', '"ENUM(''a'')"')

--- nextval | query_not_allowed
SELECT nextval('s')

--- currval | query_not_allowed
SELECT currval('s')

--- setval | query_not_allowed
SELECT setval('s', 1)

--- setseed | query_not_allowed
SELECT setseed(0.5)

--- write_log | query_not_allowed
SELECT write_log('x')

--- enable_logging | query_not_allowed
SELECT * FROM enable_logging()

--- disable_logging | query_not_allowed
SELECT * FROM disable_logging()

--- truncate_duckdb_logs | query_not_allowed
SELECT * FROM truncate_duckdb_logs()

--- enable_profiling | query_not_allowed
SELECT * FROM enable_profiling()

--- checkpoint function | query_not_allowed
SELECT * FROM checkpoint()

--- force_checkpoint function | query_not_allowed
SELECT * FROM force_checkpoint()

--- create_external_resource | query_not_allowed
SELECT * FROM create_external_resource('x')

--- register_external_resource | query_not_allowed
SELECT * FROM register_external_resource('x')

--- internal compression function | query_not_allowed
SELECT __internal_decompress_string(1)

--- internal compress function | query_not_allowed
SELECT __internal_compress_string_ubigint('x')

--- forged aggregate state | query_not_allowed
SELECT finalize('x'::BLOB)

--- combine of states | query_not_allowed
SELECT combine('x', 'y')

--- to_aggregate_state | query_not_allowed
SELECT to_aggregate_state('x')

--- remap_struct | query_not_allowed
SELECT remap_struct({'a': 1}, NULL, NULL, NULL)

--- create_sort_key | query_not_allowed
SELECT create_sort_key(author, 'ASC') FROM blocks

--- constant_or_null | query_not_allowed
SELECT constant_or_null(1, 2)

--- EXPORT_STATE | query_not_allowed
SELECT sum(gas_used) EXPORT_STATE FROM blocks

--- positional parameter | query_parameter
SELECT * FROM blocks WHERE block_number = $1

--- question mark | query_parameter
SELECT * FROM blocks WHERE block_number = ?

--- numbered question mark | query_parameter
SELECT ?1

--- unknown parameter | query_parameter
SELECT $missing

--- parameter as a relation | query_syntax
SELECT * FROM $token

--- parameter as a column name | query_syntax
SELECT blocks.$token FROM blocks

--- parameter in capitals | query_parameter
SELECT $TOKEN
