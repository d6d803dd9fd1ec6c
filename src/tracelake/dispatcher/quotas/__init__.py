"""Quotas of orgs: what each may use, what it uses, and what happens above that."""
