"""Feeds: documents from outside the chain become rows.

`http_fetch` asks an HTTP server, `webhook_rows` reads what was sent to a webhook. What others wrote is taken apart in a
process of its own (`process`), which holds no credential but the secrets of its one request:

- `networks`, `hosts`, `dialling`: which addresses may be called, and connections to exactly those;
- `exchange`, `retrying`, `paging`: requests with their redirects, bounded in bytes and seconds; repeats; pages;
- `documents`, `values`, `mapping`: bytes to records, records to typed values;
- `files`: typed values to Parquet, or to JSON lines for a sink;
- `launch`, `places`, `operators`: the worker's side.
"""
