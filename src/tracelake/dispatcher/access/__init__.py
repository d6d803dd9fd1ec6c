"""Tokens of users, and what a token that is limited to DAGs reaches."""
