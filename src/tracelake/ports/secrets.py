"""The SecretProvider port: the values behind the names that a job's `secrets` list.

Secrets belong to an org; whoever asks says which one, by what the Dispatcher said about the claimed task, never by what
a document says. Values go to the one operator that runs for that task, and nowhere else.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from tracelake.errors import SecretMissingError
from tracelake.model.hiding import Hiding


class SecretProvider(Protocol):
    async def fetch(self, org: str, names: Sequence[str]) -> Mapping[str, str]:
        """Every one of them as it is now, none of them empty.

        Raises `SecretMissingError` if the org lacks one, `SecretsUnavailableError` if that cannot be known now. Neither
        says anything of a value.
        """
        ...


class SecretValues(Mapping[str, str]):
    """Secrets by name, which show no value unless they are asked for one."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})
        self.hide = Hiding(self._values.values())
        """Blanks these values in a text."""

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"SecretValues({', '.join(sorted(self._values))})"


class NoSecrets:
    """Of a worker that was given no provider."""

    async def fetch(self, org: str, names: Sequence[str]) -> Mapping[str, str]:
        raise SecretMissingError(f"This worker has no secrets; {org} asks for {', '.join(names)}.")
