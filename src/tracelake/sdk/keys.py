"""Keys of rows: refused if they are derived from the attempt or from the time of its run.

A retried task publishes its rows again, and the table tells them by their key. A key must therefore follow from the
data, or from the unit of the task. Times between the start of the attempt and now cannot come from the data, which was
there before.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tracelake.sdk.errors import UnstableKeyError

_HASH = re.compile(r"0x[0-9a-f]+|[0-9a-f]{32,}", re.IGNORECASE)
"""May contain any digits by chance."""
_NUMBER = re.compile(r"(?<![0-9.])([0-9]{10,19})(\.[0-9]+)?(?![0-9])")
_UNITS = {10: 1, 13: 10**3, 16: 10**6, 19: 10**9}
"""Digits of a time since 1970, and its parts of a second."""
_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?")


class KeyRules:
    def __init__(self, *, task_id: str, attempt: int, lease_token: str, token: str, started_at: float) -> None:
        self._secrets = (("lease_token", lease_token.lower()), ("capability token", token.lower()))
        number = f"{attempt}(?![0-9])"
        self._attempt = re.compile(rf"attempt[^0-9a-z]{{0,3}}{number}|{re.escape(task_id.lower())}[^0-9a-z]{number}")
        self._started_at = started_at

    def check(self, rows: Iterable[Mapping[str, Any]], columns: Iterable[str], now: float) -> None:
        """Raises UnstableKeyError at the first key that another attempt would not have."""
        names = list(columns)
        for line, row in enumerate(rows, 1):
            for name in names:
                value = row.get(name)
                if value is None:
                    raise UnstableKeyError(f"row {line}: the key column {name} has no value")
                reason = self.find_reason(value if isinstance(value, str) else str(value), now)
                if reason is not None:
                    raise UnstableKeyError(
                        f"row {line}: the key column {name} contains {reason}, which changes with the next attempt:"
                        " derive the key from the data or from the unit"
                    )

    def find_reason(self, text: str, now: float) -> str | None:
        lower = text.lower()
        for name, secret in self._secrets:
            if secret and secret in lower:
                return f"the {name}"
        if self._attempt.search(lower):
            return "the number of the attempt"
        return "the time of the run" if self._has_time(text, now) else None

    def _has_time(self, text: str, now: float) -> bool:
        first = int(self._started_at)
        for digits, fraction in _NUMBER.findall(_HASH.sub(" ", text)):
            unit = _UNITS.get(len(digits))
            if unit is not None and first <= (int(digits) + (float(fraction) if fraction else 0)) / unit <= now:
                return True
        for date, time, fraction in _TIME.findall(text):
            try:
                moment = datetime.fromisoformat(f"{date}T{time}").replace(tzinfo=UTC).timestamp()
            except ValueError:
                continue
            if first <= moment + (float(fraction) if fraction else 0) <= now:
                return True
        return False
