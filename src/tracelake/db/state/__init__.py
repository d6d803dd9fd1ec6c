"""Postgres state: migrations. The SQL that changes task state lives in `tracelake.dispatcher.engine` alone."""
