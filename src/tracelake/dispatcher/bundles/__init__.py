"""Bundles of users' code: uploads (`uploads`), who inspects them (`inspection`), the table of them (`rows`), what is
left of old uploads (`upload_retention`)."""
