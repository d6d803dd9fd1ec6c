"""Kinds of settings: how the value of each is read, checked, shown and described; and how a setting is declared."""

import math
import os
import re
from dataclasses import field
from pathlib import Path
from typing import Any

from tracelake.example_files import RECORDED_CHAIN, find_example

EXAMPLE_RECORDING = "example"
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}$")
_HOST = re.compile(r"^[A-Za-z0-9.:_-]{1,253}$")
_HTTPS = re.compile(r"https://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[!-~]*)?")
_DSN = re.compile(r"postgres(ql)?://.*", re.DOTALL)
_MEMORY = re.compile(r"[1-9][0-9]{0,5}[mgMG]")
_VISIBLE = re.compile(r"[!-~]{1,300}")
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


class SettingKind:
    """How one kind of setting is read. `expected` completes the sentence "expected ..."."""

    expected = "text"
    secret = False

    def parse(self, value: object) -> Any:
        """The typed value; raises ValueError for anything else."""
        raise NotImplementedError

    def show(self, value: Any) -> str:
        return str(value)


class IntegerKind(SettingKind):
    def __init__(self, minimum: int, maximum: int = 2**53) -> None:
        self.minimum, self.maximum = minimum, maximum
        self.expected = f"a whole number from {minimum}"
        if maximum < 2**53:
            self.expected += f" to {maximum}"

    def parse(self, value: object) -> int:
        if isinstance(value, str):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError
        if not self.minimum <= value <= self.maximum:
            raise ValueError
        return value


class SecondsKind(SettingKind):
    def __init__(self, maximum: float = math.inf) -> None:
        self._maximum = maximum
        self.expected = "a number of seconds above 0" + ("" if maximum == math.inf else f", at most {maximum:g}")

    def parse(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError
        try:
            seconds = float(value)
        except OverflowError:
            raise ValueError from None
        if not math.isfinite(seconds) or not 0 < seconds <= self._maximum:
            raise ValueError
        return seconds

    def show(self, value: Any) -> str:
        return str(int(value)) if float(value).is_integer() else repr(value)


class RatioKind(SettingKind):
    expected = "a number from 0 to 1"

    def parse(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError
        ratio = float(value)
        if not 0.0 <= ratio <= 1.0:
            raise ValueError
        return ratio


class SwitchKind(SettingKind):
    expected = "true or false"

    def parse(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if not isinstance(value, str) or value.lower() not in _TRUE | _FALSE:
            raise ValueError
        return value.lower() in _TRUE

    def show(self, value: Any) -> str:
        return "true" if value else "false"


class TextKind(SettingKind):
    def __init__(self, pattern: re.Pattern[str], expected: str, *, secret: bool = False) -> None:
        self.pattern, self.expected, self.secret = pattern, expected, secret

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not self.pattern.fullmatch(value):
            raise ValueError
        return value

    def show(self, value: Any) -> str:
        return "" if value is None else str(value)


class DirectoryKind(SettingKind):
    expected = "the path of a directory"

    def parse(self, value: object) -> Path:
        if not isinstance(value, (str, Path)) or "\0" in str(value) or not str(value):
            raise ValueError
        try:
            return Path(os.path.abspath(Path(value).expanduser()))  # noqa: PTH100 - resolve() follows links
        except (RuntimeError, OSError):
            raise ValueError from None


class FileKind(DirectoryKind):
    expected = "the path of a file"

    def show(self, value: Any) -> str:
        return "" if value is None else str(value)


class RecordingKind(FileKind):
    expected = f"the path of a recorded chain, or {EXAMPLE_RECORDING} for the one that comes with Trace"

    def parse(self, value: object) -> Path:
        return super().parse(find_example(RECORDED_CHAIN) if value == EXAMPLE_RECORDING else value)


class JwksKind(FileKind):
    expected = "the path of a file, or an https:// address"

    def parse(self, value: object) -> Any:
        if isinstance(value, str) and "://" in value:
            if not _HTTPS.fullmatch(value):
                raise ValueError
            return value
        return super().parse(value)


def setting(kind: SettingKind, default: Any, doc: str) -> Any:
    """Declare a setting: a field of a dataclass, with its kind and what it does."""
    return field(default=default, repr=not kind.secret, metadata={"kind": kind, "doc": doc})


def seconds(default: float, doc: str, *, maximum: float = math.inf) -> Any:
    return setting(SecondsKind(maximum), float(default), doc)


def integer(default: int, doc: str, *, minimum: int = 1, maximum: int = 2**53) -> Any:
    return setting(IntegerKind(minimum, maximum), default, doc)


def port(doc: str) -> Any:
    return integer(0, f"{doc} 0: a free port.", minimum=0, maximum=65535)


def switch(default: bool, doc: str) -> Any:
    return setting(SwitchKind(), default, doc)


def ratio(default: float, doc: str) -> Any:
    return setting(RatioKind(), default, doc)


def text(default: str | None, pattern: str, expected: str, doc: str) -> Any:
    return setting(TextKind(re.compile(pattern), expected), default, doc)


def host(default: str | None, doc: str) -> Any:
    return setting(TextKind(_HOST, "a host name or address"), default, doc)


def name(default: str, doc: str) -> Any:
    return setting(TextKind(_NAME, "1 to 63 lower-case letters, digits, '.', '_' or '-'"), default, doc)


def visible(default: str, doc: str) -> Any:
    return setting(TextKind(_VISIBLE, "1 to 300 visible ASCII characters"), default, doc)


def memory(default: str, doc: str) -> Any:
    return setting(TextKind(_MEMORY, "an amount like 2g or 512m"), default, doc)


def choice(default: str, choices: tuple[str, ...], doc: str) -> Any:
    return text(default, "|".join(choices), "one of " + ", ".join(choices), doc)


def secret(doc: str) -> Any:
    return setting(TextKind(_VISIBLE, "visible characters without spaces", secret=True), None, doc)


def dsn(doc: str) -> Any:
    expected = "an address like postgresql://user:password@host:5432/database"
    return setting(TextKind(_DSN, expected, secret=True), None, doc)


def directory(default: Path, doc: str) -> Any:
    return setting(DirectoryKind(), default, doc)


def file(doc: str) -> Any:
    return setting(FileKind(), None, doc)


def recording(doc: str) -> Any:
    return setting(RecordingKind(), None, doc)


def jwks(doc: str) -> Any:
    return setting(JwksKind(), None, doc)
