"""Contexts: named stacks of other machines, each with its address, its CA certificate and a token.

`trace login` writes them below `$XDG_CONFIG_HOME/trace` (else `~/.config/trace`), 0700, with files of 0600:

    contexts/NAME.json                where the stack is, and the names of the next two files
    contexts/NAME-<random>.pem        the CA certificate, if `trace login` was given one
    contexts/NAME-<random>.token      the token
    current                           the name of the current context

Every file is replaced whole or not at all. Certificate and token have new names at each login, and `NAME.json`, which
names them, is written after them: a reader sees the old login or the new one. A command that has read the names of the
old one when a login removes its files fails to open them, and works again when it is repeated. A crash leaves at most
files that no context names, which the next login removes. Writers hold a lock, and each context has files of its own,
so that two logins at once lose nothing.
"""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tracelake.private_files import private_directory, write_private

LOCAL = "local"
"""The name that stands for the stack of this machine; no context has it."""
NAME_RULE = "1 to 64 lower-case letters, digits, '.', '_' or '-', the first a letter or a digit"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LARGEST = 1024 * 1024


class ContextError(Exception):
    """The context does not exist or cannot be read; the message tells what to do."""


class SavedContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of `NAME.json`."""

    name: str
    public_url: str
    ca_file: str
    """Relative to the directory of the store, as `token_file`. Empty: the CAs of the machine."""
    token_file: str
    query_url: str | None = None
    """The Query Service, as the stack described it at login; None: it had none."""
    subject: str = ""
    """Whose token it is, by the answer at login; as are the others."""
    org: str = ""
    roles: list[str] = []
    dags: list[str] | None = None


def is_context_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text)) and text != LOCAL


@dataclass(frozen=True, slots=True)
class ContextStore:
    directory: Path

    @classmethod
    def default(cls) -> "ContextStore":
        """Below XDG_CONFIG_HOME if that is an absolute path, as its specification has it, else below ~/.config."""
        base = Path(os.environ.get("XDG_CONFIG_HOME") or "")
        return cls((base if base.is_absolute() else Path("~/.config").expanduser()) / "trace")

    def current(self) -> str | None:
        """The name of the current context; None: the stack of this machine."""
        try:
            name = (self.directory / "current").read_text(encoding="ascii").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError):
            raise self._broken("current") from None
        if not name or name == LOCAL:
            return None
        return name

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._contexts.glob("*.json") if is_context_name(path.stem))

    def read(self, name: str) -> SavedContext:
        """Raises ContextError."""
        if is_context_name(name):
            try:
                with self._file(name).open("rb") as file:
                    saved = msgspec.json.decode(file.read(_LARGEST), type=SavedContext)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except (OSError, msgspec.MsgspecError):
                raise self._broken(f"contexts/{name}.json") from None
            else:
                return saved
        names = ", ".join(self.names()) or "none"
        raise ContextError(f"there is no context {name!r} (there are: {names}); `trace login` makes one")

    def save(self, context: SavedContext, certificate: bytes | None, token: str) -> SavedContext:
        """Writes the context with copies of its certificate and its token, and makes it the current one. The names of
        the files in `context` are chosen here. `certificate`: None for the CAs of the machine."""
        with self._lock():
            stem = f"contexts/{context.name}-{secrets.token_hex(8)}"
            ca_file = "" if certificate is None else f"{stem}.pem"
            saved = msgspec.structs.replace(context, ca_file=ca_file, token_file=f"{stem}.token")
            if certificate is not None:
                write_private(self.directory / ca_file, certificate)
            write_private(self.directory / saved.token_file, f"{token}\n")
            document = msgspec.json.format(msgspec.json.encode(saved), indent=2)
            write_private(self._file(context.name), document + b"\n")
            write_private(self.directory / "current", f"{context.name}\n")
            self._remove_unnamed()
        return saved

    def use(self, name: str) -> None:
        """Makes a context the current one; `local` stands for the stack of this machine. Raises ContextError."""
        with self._lock():
            if name != LOCAL:
                self.read(name)
            write_private(self.directory / "current", f"{name}\n")

    def remove(self, name: str) -> None:
        """Removes a context with its token; the stack of this machine is current if it was. Raises ContextError."""
        with self._lock():
            if not is_context_name(name) or not self._file(name).exists():
                self.read(name)
            self._file(name).unlink(missing_ok=True)
            if self.current() == name:
                write_private(self.directory / "current", f"{LOCAL}\n")
            self._remove_unnamed()

    @property
    def _contexts(self) -> Path:
        return self.directory / "contexts"

    def _file(self, name: str) -> Path:
        return self._contexts / f"{name}.json"

    def _remove_unnamed(self) -> None:
        """Removes certificates and tokens that no context names. One that cannot be read keeps everything."""
        try:
            contexts = [self.read(name) for name in self.names()]
        except ContextError:
            return
        used_files = {self.directory / file for context in contexts for file in (context.ca_file, context.token_file)}
        for pattern in ("*.pem", "*.token"):
            for path in self._contexts.glob(pattern):
                if path not in used_files:
                    path.unlink(missing_ok=True)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        private_directory(self.directory)
        private_directory(self._contexts)
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _broken(self, file: str) -> ContextError:
        return ContextError(f"{self.directory / file} cannot be read; log in again with `trace login`, or remove it")
