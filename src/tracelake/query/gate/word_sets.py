"""Sets of words as tables that a person can read."""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())
