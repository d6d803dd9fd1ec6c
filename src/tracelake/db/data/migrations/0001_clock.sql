-- All time is this one function; tests may replace it with an offset.
CREATE FUNCTION trace_now() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT statement_timestamp()';
