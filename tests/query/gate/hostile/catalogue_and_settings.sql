--- information_schema tables | query_unknown_relation
SELECT * FROM information_schema.tables

--- information_schema columns | query_unknown_relation
SELECT column_name FROM information_schema.columns

--- information_schema in quotes | query_unknown_relation
SELECT * FROM "information_schema"."tables"

--- pg_catalog | query_unknown_relation
SELECT * FROM pg_catalog.pg_class

--- pg_class without a schema | query_unknown_relation
SELECT * FROM pg_class

--- pg_settings | query_unknown_relation
SELECT * FROM pg_settings

--- pg_views | query_unknown_relation
SELECT * FROM pg_catalog.pg_views

--- sqlite_master | query_unknown_relation
SELECT sql FROM sqlite_master

--- sqlite_schema | query_unknown_relation
SELECT * FROM sqlite_schema

--- duckdb_tables as a view | query_unknown_relation
SELECT * FROM duckdb_tables

--- duckdb_logs as a view | query_unknown_relation
SELECT * FROM duckdb_logs

--- pragma_database_list | query_unknown_relation
SELECT * FROM pragma_database_list

--- duckdb_settings | query_not_allowed
SELECT * FROM duckdb_settings()

--- duckdb_views | query_not_allowed
SELECT sql FROM duckdb_views()

--- duckdb_tables | query_not_allowed
SELECT * FROM duckdb_tables()

--- duckdb_columns | query_not_allowed
SELECT * FROM duckdb_columns()

--- duckdb_functions | query_not_allowed
SELECT * FROM duckdb_functions()

--- duckdb_secrets | query_not_allowed
SELECT * FROM duckdb_secrets()

--- duckdb_variables | query_not_allowed
SELECT * FROM duckdb_variables()

--- duckdb_databases | query_not_allowed
SELECT path FROM duckdb_databases()

--- duckdb_extensions | query_not_allowed
SELECT * FROM duckdb_extensions()

--- duckdb_memory | query_not_allowed
SELECT * FROM duckdb_memory()

--- duckdb_temporary_files | query_not_allowed
SELECT * FROM duckdb_temporary_files()

--- duckdb_external_file_cache | query_not_allowed
SELECT * FROM duckdb_external_file_cache()

--- duckdb_prepared_statements | query_not_allowed
SELECT * FROM duckdb_prepared_statements()

--- duckdb_logs function | query_not_allowed
SELECT * FROM duckdb_logs()

--- duckdb_logs_parsed | query_not_allowed
SELECT * FROM duckdb_logs_parsed('HTTP')

--- duckdb_keywords | query_not_allowed
SELECT * FROM duckdb_keywords()

--- duckdb_connection_count | query_not_allowed
SELECT * FROM duckdb_connection_count()

--- duckdb_table_sample | query_not_allowed
SELECT * FROM duckdb_table_sample('blocks')

--- pragma_table_info | query_not_allowed
SELECT * FROM pragma_table_info('blocks')

--- pragma_storage_info | query_not_allowed
SELECT * FROM pragma_storage_info('blocks')

--- pragma_version | query_not_allowed
SELECT * FROM pragma_version()

--- pragma_database_size | query_not_allowed
SELECT * FROM pragma_database_size()

--- pragma_user_agent | query_not_allowed
SELECT * FROM pragma_user_agent()

--- pragma_show | query_not_allowed
SELECT * FROM pragma_show('blocks')

--- current_setting | query_not_allowed
SELECT current_setting('allowed_paths')

--- current_setting in WHERE | query_not_allowed
SELECT 1 WHERE current_setting('threads')::INT > 1

--- current_setting in a lambda | query_not_allowed
SELECT list_transform([1], lambda x: current_setting('temp_directory'))

--- current_database | query_not_allowed
SELECT current_database()

--- current_schema | query_not_allowed
SELECT current_schema()

--- current_schemas | query_not_allowed
SELECT current_schemas(true)

--- current_user function | query_not_allowed
SELECT current_user()

--- current_user as a word | query_not_allowed
SELECT current_user

--- user as a word | query_not_allowed
SELECT user

--- session_user as a word | query_not_allowed
SELECT session_user

--- current_catalog as a word | query_not_allowed
SELECT current_catalog

--- current_role as a word | query_not_allowed
SELECT current_role

--- current_schema as a word | query_not_allowed
SELECT current_schema

--- current_query | query_not_allowed
SELECT current_query()

--- current_query as a word | query_not_allowed
SELECT current_query

--- current_connection_id | query_not_allowed
SELECT current_connection_id()

--- current_transaction_id | query_not_allowed
SELECT current_transaction_id()

--- txid_current | query_not_allowed
SELECT txid_current()

--- version | query_not_allowed
SELECT version()

--- inet_server_addr | query_not_allowed
SELECT inet_server_addr()

--- pg_typeof | query_not_allowed
SELECT pg_typeof(1)

--- pg_get_viewdef | query_not_allowed
SELECT pg_get_viewdef(1)

--- has_table_privilege | query_not_allowed
SELECT has_table_privilege('blocks', 'select')

--- col_description | query_not_allowed
SELECT col_description(1, 2)

--- obj_description | query_not_allowed
SELECT obj_description(1, 'x')

--- in_search_path | query_not_allowed
SELECT in_search_path('main', 'main')

--- getvariable | query_not_allowed
SELECT getvariable('secret')

--- stats of a column | query_not_allowed
SELECT stats(gas_used) FROM blocks

--- vector_type | query_not_allowed
SELECT vector_type(gas_used) FROM blocks

--- pg_timezone_names | query_not_allowed
SELECT * FROM pg_timezone_names()

--- icu_calendar_names | query_not_allowed
SELECT * FROM icu_calendar_names()

--- test_all_types | query_not_allowed
SELECT * FROM test_all_types()

--- summary function | query_not_allowed
SELECT * FROM summary((SELECT * FROM blocks))

--- rowid | query_unknown_column
SELECT rowid FROM blocks

--- rowid with its relation | query_unknown_column
SELECT blocks.rowid FROM blocks

--- rowid in capitals | query_unknown_column
SELECT ROWID FROM blocks

--- rowid in quotes | query_unknown_column
SELECT "rowid" FROM blocks

--- rowid in WHERE | query_unknown_column
SELECT author FROM blocks WHERE rowid < 10

--- filename column | query_unknown_column
SELECT filename FROM blocks

--- file_row_number column | query_unknown_column
SELECT file_row_number FROM transfers

--- tableoid column | query_unknown_column
SELECT tableoid FROM blocks

--- show_tables | query_not_allowed
SHOW TABLES

--- show all tables | query_not_allowed
SHOW ALL TABLES

--- describe | query_not_allowed
DESCRIBE blocks

--- describe a query | query_not_allowed
DESCRIBE SELECT * FROM blocks

--- summarize | query_not_allowed
SUMMARIZE blocks

--- show in FROM | query_not_allowed
SELECT * FROM (SHOW TABLES)

--- describe in FROM | query_not_allowed
SELECT * FROM (DESCRIBE blocks)

--- summarize in a CTE | query_not_allowed
WITH s AS (SUMMARIZE blocks) SELECT * FROM s

--- show databases | query_not_allowed
SHOW DATABASES
