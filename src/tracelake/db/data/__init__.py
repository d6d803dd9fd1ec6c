"""Postgres data: hot tables and buffered datasets."""
