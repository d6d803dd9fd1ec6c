"""The only code that changes task state.

A call becomes a `Decision` on a locked snapshot (`calls`, pure), decisions of one batch become one
transaction (`rows`, `commit`), and calls that arrive while a transaction is in flight share the next one
(`group`).
"""
