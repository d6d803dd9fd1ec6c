"""Runbooks, each tried on a real stack by the very commands of its page."""
