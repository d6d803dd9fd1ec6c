"""Logs of runs: their rows and addresses (`rows`), and their removal (`log_retention`)."""
