"""The SQL of users: the config of `spark_sql`, and the gate that every query passes.

`gate` is the way in: it parses a query, has `writer`, `expressions` and `calls` write it anew, has `cost` and
`relations` bound what it may cost, and has `alignment` compare both texts. `functions` lists what a query may call,
`literals` parses the small languages inside of arguments, `findings` says what is wrong and where. `config` imports the
gate only when it reads a query: the SQL parser is slow to import.
"""
