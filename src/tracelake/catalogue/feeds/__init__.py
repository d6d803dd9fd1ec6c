"""How the answer of a feed becomes rows: paths into documents, columns with types, templates of addresses.

Both operators of feeds (`http_fetch`, `webhook_rows`) share `mapping`. Everything here is checked at deploy and does no
I/O; `tracelake.feeds` does the work.
"""
