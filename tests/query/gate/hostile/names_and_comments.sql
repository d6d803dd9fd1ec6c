--- zero width space in a name | query_syntax
SELECT * FROM blo{U+200B}cks

--- zero width joiner in a function | query_syntax
SELECT a{U+200D}bs(1)

--- byte order mark | query_syntax
{U+FEFF}SELECT 1

--- right to left override | query_syntax
SELECT '{U+202E}txt' FROM blocks

--- NUL | query_syntax
SELECT 1{U+0000}; DROP TABLE blocks

--- backspace | query_syntax
SELECT 1 {U+0008}

--- escape | query_syntax
SELECT '{U+001B}[2J'

--- delete | query_syntax
SELECT 1{U+007F}

--- no-break space | query_syntax
SELECT{U+00A0}1

--- ideographic space | query_syntax
SELECT{U+3000}1

--- line separator | query_syntax
SELECT 1 --{U+2028} FROM read_text('/etc/passwd')

--- next line | query_syntax
SELECT 1 --{U+0085}, 2

--- soft hyphen | query_syntax
SELECT * FROM bl{U+00AD}ocks

--- private use character | query_syntax
SELECT '{U+E000}'

--- Kelvin sign for k | query_unknown_relation
SELECT * FROM bloc{U+212A}s

--- long s in a name | query_unknown_relation
SELECT * FROM block{U+017F}

--- dotless i in a name | query_unknown_relation
SELECT * FROM b{U+0131}n

--- full width letters | query_unknown_relation
SELECT * FROM {U+FF42}{U+FF4C}{U+FF4F}{U+FF43}{U+FF4B}{U+FF53}

--- full width function | query_not_allowed
SELECT {U+FF41}{U+FF42}{U+FF53}(1)

--- Kelvin sign in a function | query_not_allowed
SELECT {U+212A}urtosis(gas_used) FROM blocks

--- quoted name with a dot | query_unknown_relation
SELECT * FROM "main.blocks"

--- quoted name with quotes | query_unknown_relation
SELECT * FROM "blocks""; DROP TABLE x; --"

--- quoted empty name | query_syntax
SELECT * FROM ""

--- schema of the database | query_unknown_relation
SELECT * FROM main.blocks

--- catalogue and schema | query_unknown_relation
SELECT * FROM memory.main.blocks

--- temp schema | query_unknown_relation
SELECT * FROM temp.blocks

--- system schema | query_unknown_relation
SELECT * FROM system.main.duckdb_tables

--- catalogue without a schema | query_unknown_relation
SELECT * FROM memory.blocks

--- four parts | query_unknown_relation
SELECT * FROM a.b.c.blocks

--- schema in a quoted name | query_unknown_relation
SELECT * FROM "main"."blocks"

--- function with a schema | query_not_allowed
SELECT main.abs(1)

--- function with pg_catalog | query_not_allowed
SELECT pg_catalog.version()

--- function with system | query_not_allowed
SELECT system.main.abs(1)

--- method on a column | query_not_allowed
SELECT author.upper() FROM blocks

--- method with a refused name | query_not_allowed
SELECT 'x'.query()

--- method that reads a file | query_not_allowed
SELECT '/etc/passwd'.read_text()

--- reader hidden in a comment that ends | query_not_allowed
SELECT 1 /* x */ FROM read_text('/etc/passwd') /* y */

--- comment inside of a comment | contained
SELECT 1 /* a /* b */ FROM read_text('/etc/passwd') -- */

--- unclosed comment | query_syntax
SELECT 1 /* FROM blocks

--- unclosed quote | query_syntax
SELECT 'abc FROM blocks

--- unclosed name | query_syntax
SELECT "abc FROM blocks

--- unclosed dollar quote | query_syntax
SELECT $$abc FROM blocks

--- dollar quote with a tag | query_not_allowed
SELECT $a$'$a$, read_text('/etc/passwd'), $b$'$b$

--- hash comment | query_syntax
SELECT 1 # FROM blocks

--- backslash before a quote | query_not_allowed
SELECT '\', read_text('/etc/passwd'), '\'

--- doubled quotes | query_not_allowed
SELECT '''', read_text('/etc/passwd'), ''''

--- alias with a control character | query_not_allowed
SELECT 1 AS "{a * 200}"

--- very long relation | query_unknown_relation
SELECT * FROM "{x * 300}"

--- name of a WITH that is too long | query_not_allowed
WITH {y * 200} AS (SELECT 1) SELECT 1

--- name of a WITH with a space | query_not_allowed
WITH "a b" AS (SELECT 1) SELECT * FROM "a b"

--- name of a WITH with a slash | query_not_allowed
WITH "a/b" AS (SELECT 1) SELECT * FROM "a/b"

--- empty query | query_syntax


--- only a comment | query_syntax
-- nothing

--- only blanks | query_syntax
{  * 10}

--- only a semicolon | query_not_allowed
;
