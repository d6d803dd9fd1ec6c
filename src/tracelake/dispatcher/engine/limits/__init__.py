"""Limits on running work: which limits a task has (`keys`), and how tasks get places (`places`)."""
