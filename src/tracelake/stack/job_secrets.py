"""The secrets of jobs for the workers of one machine: in a file, and in the environment of `trace up`.

The environment (`TRACE_SECRET_<ORG>__<NAME>`) reaches the workers by a file that only they can read; no child has it in
its own environment. A worker that is started by hand has one of its own.
"""

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence

import msgspec

from tracelake.adapters.secret_file import (
    LiteSecrets,
    SecretFileError,
    Tables,
    read_tables,
    remove_secret,
    set_secret,
    stray_names,
)
from tracelake.model import redaction
from tracelake.model.dag import SECRET_NAME
from tracelake.ports import SecretProvider
from tracelake.settings import SECRET_PREFIX, SettingsError
from tracelake.settings.home import Home, write_private

__all__ = [
    "NAME",
    "ORG",
    "SecretFileError",
    "forget_environment",
    "from_environment",
    "keep_environment",
    "read_environment",
    "read_tables",
    "remove_secret",
    "secret_provider",
    "set_secret",
    "stray_names",
]

ORG = re.compile(r"[a-z][a-z0-9_]{0,127}")
NAME = re.compile(SECRET_NAME)


def from_environment(environ: Mapping[str, str]) -> Tables:
    """The secrets in the environment, by org and name. The first `__` ends the org; without one it is refused."""
    tables: Tables = {}
    for variable, value in environ.items():
        if not variable.startswith(SECRET_PREFIX):
            continue
        org, separator, name = variable.removeprefix(SECRET_PREFIX).partition("__")
        if not separator or org != org.upper() or not ORG.fullmatch(org.lower()) or not NAME.fullmatch(name):
            raise SettingsError(f"the environment variable {variable} is no {SECRET_PREFIX}<ORG>__<NAME>")
        if value:  # set to nothing is how a shell says "not set"
            tables.setdefault(org.lower(), {})[name] = value
    return tables


def keep_environment(home: Home) -> None:
    """Stores the secrets of this process's environment for the workers that it starts."""
    write_private(home.secrets_environment_file, json.dumps(from_environment(os.environ)) + "\n")


def forget_environment(home: Home) -> None:
    home.secrets_environment_file.unlink(missing_ok=True)


def read_environment(home: Home) -> Tables:
    try:
        return msgspec.json.decode(home.secrets_environment_file.read_bytes(), type=Tables)
    except (OSError, msgspec.DecodeError):
        return {}


@functools.cache
def _own_environment() -> Tables:
    """Reads the secrets of the environment once and removes them: child processes (Java, Python for Spark) must not
    inherit them."""
    tables = from_environment(os.environ)
    for variable in [name for name in os.environ if name.startswith(SECRET_PREFIX)]:
        del os.environ[variable]
    return tables


class _HiddenInLogs:
    """Values are blanked in this process's logs before anybody has them, and for as long as it lives."""

    def __init__(self, provider: SecretProvider) -> None:
        self._provider = provider

    async def fetch(self, org: str, names: Sequence[str]) -> Mapping[str, str]:
        values = await self._provider.fetch(org, names)
        redaction.HIDDEN.add(values.values())
        return values


def secret_provider(home: Home) -> SecretProvider:
    own = _own_environment()

    def told() -> Tables:
        stored = read_environment(home)
        return {org: stored.get(org, {}) | own.get(org, {}) for org in stored.keys() | own.keys()}

    return _HiddenInLogs(LiteSecrets(home.secrets_file, told))
