"""Secrets are blanked out of texts that others will read."""

import json
import re
import threading
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

MARK = "[secret]"
LEAST = 6
"""Shorter values stand in too many words by chance to be blanked."""


class Hiding:
    """Blanks known values wherever they stand, also as they look inside of quotes or of an address.

    It only ever grows, and may be used by several threads.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._forms: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.add(values)

    def add(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _forms(value)}
        with self._lock:
            if forms <= self._forms:
                return
            self._forms |= forms
            # The longest first: one value may begin with another.
            longest_first = sorted(self._forms, key=lambda form: (-len(form), form))
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def __call__(self, text: str) -> str:
        pattern = self._pattern
        return text if pattern is None else pattern.sub(MARK, text)

    def finds_piece(self, text: str) -> bool:
        """Whether some part of a value stands there; by chance, too."""
        return any(form[at : at + LEAST] in text for form in self._forms for at in range(len(form) - LEAST + 1))

    def finds(self, text: str) -> bool:
        return self._pattern is not None and self._pattern.search(text) is not None


def _forms(value: str) -> set[str]:
    """A key of several lines is met line by line too, and an exception may show a text with its escapes."""
    parts = {value, value.strip(), *(line.strip() for line in value.splitlines())}
    forms = set(parts)
    for part in parts:
        forms |= {repr(part)[1:-1], json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}
        if part.isprintable():
            forms |= {quote(part), quote(part, safe=""), quote_plus(part)}
    return {form for form in forms if len(form) >= LEAST}
