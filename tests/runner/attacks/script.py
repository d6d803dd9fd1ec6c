"""Scripts that the hostile functions of all languages run: attacks by their verbs, and how each ended.

A script is one string: attacks are separated by semicolons, the words of one by spaces, and each word after the verb is
an argument in hexadecimal digits. So the Rust program needs no parser of JSON.
"""

import errno
import json
from collections.abc import Sequence


def encode(verb: str, arguments: Sequence[str | bytes]) -> str:
    words = [item if isinstance(item, bytes) else item.encode() for item in arguments]
    return " ".join([verb, *(word.hex() for word in words)])


def join(lines: Sequence[str]) -> str:
    return ";".join(lines)


def read_endings(response: bytes) -> list[str]:
    """Errors by their names: Rust reports their numbers."""
    return [_name(ending) for ending in json.loads(response)]


def _name(ending: str) -> str:
    number = ending.removeprefix("E")
    return errno.errorcode.get(int(number), ending) if number != ending and number.isdigit() else ending
