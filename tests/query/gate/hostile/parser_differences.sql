--- alias from a number and letters | contained
SELECT 0xff

--- AT VERSION of a relation | query_not_allowed
SELECT * FROM blocks AT (VERSION => 1)

--- AT TIMESTAMP of a relation | query_not_allowed
SELECT * FROM blocks AT (TIMESTAMP => '2026-01-01')

--- DEFAULT as a value | query_not_allowed
SELECT DEFAULT

--- type from a schema | query_not_allowed
SELECT 1::main.int

--- unknown type | query_not_allowed
SELECT 'x'::mood

--- geometry type | query_not_allowed
SELECT 'POINT(1 2)'::GEOMETRY

--- inet type | query_not_allowed
SELECT '127.0.0.1'::INET

--- enum type | query_not_allowed
SELECT 'a'::ENUM('a', 'b')

--- union type | query_not_allowed
SELECT 1::UNION(a INT, b VARCHAR)

--- variant type | query_not_allowed
SELECT 1::VARIANT

--- bit type | query_not_allowed
SELECT '101'::BIT

--- type type | query_not_allowed
SELECT 'INTEGER'::TYPE

--- null type | query_not_allowed
SELECT 1::"NULL"

--- typed literal of an unknown type | query_not_allowed
SELECT mood 'happy'

--- typed literal of an extension | query_not_allowed
SELECT inet '127.0.0.1'

--- nested unknown type | query_not_allowed
SELECT NULL::STRUCT(a INT, b MAP(VARCHAR, mood[]))

--- array that is too large | query_not_allowed
SELECT NULL::INTEGER[99999]

--- type in a function | query_not_allowed
SELECT st_geomfromwkb('x')

--- st_astext | query_not_allowed
SELECT st_astext(1)

--- variant function | query_not_allowed
SELECT variant_typeof(1)

--- union function | query_not_allowed
SELECT union_tag(1)

--- enum function | query_not_allowed
SELECT enum_range(NULL::VARCHAR)

--- collation of ICU | query_not_allowed
SELECT author COLLATE de FROM blocks

--- collation of two | query_not_allowed
SELECT author COLLATE "nocase.de" FROM blocks

--- collation function | query_not_allowed
SELECT icu_collate_de(author) FROM blocks

--- SELECT INTO | query_syntax
SELECT * INTO copy FROM blocks

--- FOR UPDATE | query_syntax
SELECT * FROM blocks FOR UPDATE

--- TOP | query_syntax
SELECT TOP 5 * FROM blocks

--- backticks | query_ambiguous
SELECT `author` FROM `blocks`

--- square brackets as names | query_syntax
SELECT [author] FROM [blocks]

--- CONNECT BY | query_syntax
SELECT * FROM blocks CONNECT BY PRIOR block_number = block_number

--- MATCH_RECOGNIZE | query_syntax
SELECT * FROM blocks MATCH_RECOGNIZE (PATTERN (a))

--- TABLE function keyword | query_syntax
SELECT * FROM TABLE(read_text('/etc/passwd'))

--- ROWS FROM | query_syntax
SELECT * FROM ROWS FROM (read_text('/etc/passwd'))

--- ONLY | query_syntax
SELECT * FROM ONLY (blocks)

--- pipe syntax | query_syntax
FROM blocks |> SELECT author

--- named window over a reader | query_not_allowed
SELECT count(*) OVER w FROM blocks WINDOW w AS (ORDER BY (SELECT file FROM glob('/*') LIMIT 1))

--- unused named window | query_ambiguous
SELECT 1 FROM blocks WINDOW w AS (ORDER BY (SELECT content FROM read_text('/etc/passwd')))

--- unused CTE | query_not_allowed
WITH unused AS (SELECT * FROM read_text('/etc/passwd')) SELECT 1

--- unused column of a CTE | query_not_allowed
WITH c AS (SELECT 1 AS a, (SELECT content FROM read_text('/etc/passwd')) AS b) SELECT a FROM c

--- condition that is never true | query_not_allowed
SELECT CASE WHEN false THEN (SELECT content FROM read_text('/etc/passwd')) END

--- row function over a relation | contained
SELECT blocks FROM blocks

--- struct of the whole relation | contained
SELECT to_json(b) FROM blocks b

--- semicolon at the end | contained
SELECT 1;

--- many semicolons at the end | contained
SELECT 1;;;

--- OVER on a scalar function | query_not_allowed
SELECT abs(gas_used) OVER () FROM blocks

--- FILTER on a scalar function | query_not_allowed
SELECT abs(gas_used) FILTER (WHERE true) FROM blocks

--- DISTINCT in a scalar function | query_not_allowed
SELECT abs(DISTINCT gas_used) FROM blocks

--- ORDER BY in a scalar function | query_not_allowed
SELECT abs(gas_used ORDER BY author) FROM blocks

--- window function without OVER | query_not_allowed
SELECT row_number() FROM blocks

--- named argument of a scalar function | query_not_allowed
SELECT abs(x := 1)

--- unknown option of unnest | query_not_allowed
SELECT unnest([1], evil := true)

--- aggregate in FROM | query_not_allowed
SELECT * FROM sum(1)

--- scalar in FROM | query_not_allowed
SELECT * FROM upper('x')

--- repeat in FROM | query_not_allowed
SELECT * FROM repeat('x', 1000000000)

--- repeat_row | query_not_allowed
SELECT * FROM repeat_row(1, num_rows := 1000000000)

--- unnest with two relations | query_unknown_relation
SELECT * FROM unnest([1]), secrets

--- LATERAL over another relation | query_unknown_relation
SELECT * FROM blocks, LATERAL (SELECT * FROM secrets WHERE secrets.x = blocks.block_number)

--- NATURAL JOIN with another relation | query_unknown_relation
SELECT * FROM blocks NATURAL JOIN secrets

--- POSITIONAL JOIN with another relation | query_unknown_relation
SELECT * FROM blocks POSITIONAL JOIN secrets

--- SEMI JOIN with another relation | query_unknown_relation
SELECT * FROM blocks SEMI JOIN secrets USING (block_number)

--- relation in an UNPIVOT | query_unknown_relation
UNPIVOT secrets ON a INTO NAME n VALUE v

--- relation in a PIVOT | query_unknown_relation
PIVOT secrets ON a IN (1) USING sum(b)

--- PIVOT by an enum | query_not_allowed
SELECT * FROM blocks PIVOT (sum(gas_used) FOR author IN mood)

--- PIVOT by a subquery | query_not_allowed
PIVOT blocks ON author IN (SELECT author FROM blocks) USING sum(gas_used)

--- relation in USING SAMPLE | query_unknown_relation
SELECT * FROM secrets USING SAMPLE 10 ROWS

--- relation of a qualified star | query_invalid
SELECT secrets.* FROM blocks

--- column of a relation that is not read | query_invalid
SELECT transfers.token FROM blocks
