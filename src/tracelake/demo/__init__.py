"""`trace demo`: from a chain to flows of tokens on a stack of its own, while parts of it are killed.

`command` is the command line, `plan` says what is to be done (which chain, which blocks), `stack` runs a stack for it,
`watch` follows the work and kills a worker, `table` kills the sink and corrects what it refused, `functions` has the
functions in each language, `function_runs` brings them to the stack and follows them, `progress` and `screen` show how
far each job is, `results` and `checks` read what was made and check it, `tell` prints it.

`live` is the live chapter, a second DAG: `live_plan` says how the chain grows, `live_rows` reads rows where they are,
`live_checks` compares them with the node, `live_tables` prints what came of it.

Its DAGs, its functions and the recorded chain are in `examples/token_flows` and `examples/live_chain`.
"""


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""
