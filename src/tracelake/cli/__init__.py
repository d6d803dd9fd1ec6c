"""Commands over the client: tables for people, `--json` for programs."""
