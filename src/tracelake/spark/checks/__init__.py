"""Evaluates the checks of an attempt on the rows that it wrote, before they are committed."""
