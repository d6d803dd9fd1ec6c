"""Logs of attempts: rows and addresses of functions' logs (`rows`), reports of workers (`attempt_logs`), and the
removal of both (`log_retention`)."""
