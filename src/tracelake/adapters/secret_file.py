"""The SecretProvider port on one machine: what the environment said, else a 0600 file with a table for each org.

    [acme]
    EXPLORER_KEY = "..."

The file is looked at for each task, so a change counts at once. One that others may read is not used at all: what it
holds is no secret any more, and somebody should know. Changes replace it whole.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracelake.errors import SecretMissingError, SecretsUnavailableError
from tracelake.private_files import write_private

logger = logging.getLogger(__name__)

Tables = dict[str, dict[str, str]]
"""By org and name."""

_HEAD = "# Secrets of jobs, by org. `trace secrets` writes this file anew: comments are not kept.\n"
_BARE = re.compile("[A-Za-z0-9_-]+")
_LINE = re.compile(r"at line \d+")
_MAX_BYTES = 1 << 20


class SecretFileError(Exception):
    """The file cannot be used. `about` says why, in words that repeat no value; {file} stands for its name."""

    def __init__(self, path: Path, about: str) -> None:
        super().__init__(about.replace("{file}", str(path)))
        self.about = about

    def told_as(self, name: str) -> str:
        """For whoever should not learn where it is."""
        return self.about.replace("{file}", name)


class LiteSecrets:
    """Secrets from a file. `overrides` answers those of the environment, by org; they come before the file."""

    def __init__(self, path: Path, overrides: Callable[[], Mapping[str, Mapping[str, str]]] = dict) -> None:
        self._path = path
        self._overrides = overrides

    async def fetch(self, org: str, names: Sequence[str]) -> Mapping[str, str]:
        return await asyncio.to_thread(self._fetch, org, names)

    def _fetch(self, org: str, names: Sequence[str]) -> Mapping[str, str]:
        overrides = self._overrides().get(org, {})
        values = {name: overrides[name] for name in names if overrides.get(name)}
        if len(values) < len(set(names)):
            table = self._kept().get(org, {})
            values |= {name: table[name] for name in names if name not in values and table.get(name)}
        missing = [name for name in names if name not in values]
        if missing:
            first = f"`trace secrets set {missing[0]} --org {org}`"
            raise SecretMissingError(
                f"The org {org} has no secret {' or '.join(missing)}; set it with {first}, then retry the task."
            )
        return values

    def _kept(self) -> Tables:
        try:
            return read_tables(self._path)
        except SecretFileError as error:
            logger.warning("secrets cannot be read", extra={"reason": str(error)})
            raise SecretsUnavailableError(f"{error.told_as(f'HOME/{self._path.name}')}.") from None


def read_tables(path: Path) -> Tables:
    """What the file says; what stands there in no org's table is nobody's. No file says nothing."""
    text = _read(path)
    tables: Tables = {}
    for org, table in text.items():
        if not isinstance(table, dict):
            continue
        for name, value in table.items():
            if not isinstance(value, str):
                raise SecretFileError(path, f"{{file}} is no list of secrets: {org}.{name} must be a text in quotes")
        tables[org] = table
    return tables


def stray_names(path: Path) -> list[str]:
    """What stands in no org's table."""
    return sorted(name for name, value in _read(path).items() if not isinstance(value, dict))


def _read(path: Path) -> dict[str, Any]:
    try:
        # Looked at by its descriptor: what is read is what was looked at, also if the name changes hands meanwhile.
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
                raise SecretFileError(path, "{file} is no file, or too large to be a list of secrets")
            if status.st_mode & 0o077:
                raise SecretFileError(
                    path, "{file} may be read by others, so it is not used: make it yours alone with `chmod 600 {file}`"
                )
            text = file.read().decode("utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SecretFileError(path, f"{{file}} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SecretFileError(path, "{file} is not UTF-8 text") from None
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        where = _LINE.search(str(error))
        place = f" {where[0]}" if where else ""
        raise SecretFileError(path, f'{{file}} is not TOML{place}: [org], then lines like NAME = "value"') from None


def set_secret(path: Path, org: str, name: str, value: str) -> bool:
    """True: it is new. Several who change the file at once do not undo each other."""
    with _changing(path) as tables:
        new = name not in tables.setdefault(org, {})
        tables[org][name] = value
    return new


def remove_secret(path: Path, org: str, name: str) -> bool:
    """Whether it was there."""
    with _changing(path) as tables:
        table = tables.get(org, {})
        if name not in table:
            return False
        del table[name]
    return True


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[Tables]:
    # The directory is what stays: the file itself is another one after each change.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        strays = stray_names(path)
        if strays:
            raise SecretFileError(path, f"{{file}}: {strays[0]} stands in no org's table; put it below [org] first")
        before = read_tables(path)
        tables = {org: dict(table) for org, table in before.items()}
        yield tables
        if tables != before:
            write_private(path, _written(tables))
    finally:
        os.close(directory)


def _written(tables: Tables) -> str:
    parts = [_HEAD]
    for org, table in sorted(tables.items()):
        if table:
            lines = [f"{_quoted(name, bare=True)} = {_quoted(value)}\n" for name, value in sorted(table.items())]
            parts.append(f"[{_quoted(org, bare=True)}]\n" + "".join(lines))
    return "\n".join(parts)


def _quoted(text: str, *, bare: bool = False) -> str:
    """As TOML has it, which is JSON's way but for one character."""
    if bare and _BARE.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
