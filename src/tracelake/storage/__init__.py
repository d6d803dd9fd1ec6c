"""Reading datasets without Spark: `file_cache` makes local files of pinned objects, `snapshots` reads tables of
Postgres data at one moment."""
