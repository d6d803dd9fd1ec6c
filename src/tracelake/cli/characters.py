"""Which characters a terminal can draw with."""

import os
from collections.abc import Mapping

from rich.console import Console


def draws_ascii(console: Console, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether to draw with ASCII alone: the stream or the locale is not UTF-8, or the terminal is `dumb`."""
    if not console.encoding.lower().startswith("utf") or environment.get("TERM") == "dumb":
        return True
    locale = _locale(environment)
    return bool(locale) and "utf8" not in locale.lower().replace("-", "")


def _locale(environment: Mapping[str, str]) -> str:
    """The locale of characters that the person chose; Python itself sets LC_CTYPE=C.UTF-8 where LANG is C."""
    if locale := environment.get("LC_ALL"):
        return locale
    kind = environment.get("LC_CTYPE", "")
    return environment.get("LANG", "") or kind if kind in ("", "C.UTF-8", "C.utf8", "UTF-8") else kind
