"""HOME: where everything of one stack lives, and `stack.json`, by which programs find it.

Every directory is 0700 and every file with a secret is 0600. A file is replaced whole or not at all, so
that a power cut leaves the old text or the new one.
"""

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import msgspec

STACK_VERSION = 1


def write_private(path: Path, content: str | bytes) -> None:
    """Replace the file in one step, readable by its owner alone, durable when this returns."""
    data = content.encode() if isinstance(content, str) else content
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename inside the directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_directory(directory: Path) -> Path:
    """Make the directory (and its parents) 0700; an existing one of ours is narrowed to that."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_mode & 0o777 != 0o700:
        directory.chmod(0o700)
    return directory


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `stack.json`."""

    version: int = STACK_VERSION
    pid: int
    home: str
    public_url: str
    task_url: str
    internal_url: str
    ca_file: str
    worker_token_file: str
    service_token_file: str
    admin_token_file: str
    queue_dsn_file: str
    data_dsn_file: str


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Where the tokens of a stack are kept."""

    worker_token: Path
    service_token: Path
    admin_token: Path


@dataclass(frozen=True, slots=True)
class Home:
    """Paths only; `make` creates the directories."""

    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def postgres_state(self) -> Path:
        return self.postgres / "state"

    @property
    def postgres_data(self) -> Path:
        return self.postgres / "data"

    @property
    def tls(self) -> Path:
        return self.root / "tls"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets"

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def lock_file(self) -> Path:
        return self.run / "up.lock"

    @property
    def parts_file(self) -> Path:
        """What `trace up` last said about its parts; `trace status` reads it."""
        return self.run / "parts.json"

    @property
    def settings_file(self) -> Path:
        return self.root / "settings.toml"

    @property
    def stack_file(self) -> Path:
        return self.root / "stack.json"

    @property
    def state_dsn_file(self) -> Path:
        return self.secrets / "state.dsn"

    @property
    def queue_dsn_file(self) -> Path:
        return self.secrets / "queue.dsn"

    @property
    def data_dsn_file(self) -> Path:
        return self.secrets / "data.dsn"

    def log_file(self, part: str) -> Path:
        return self.logs / f"{part}.log"

    def make(self) -> None:
        private_directory(self.root)
        for directory in (
            self.postgres,
            self.tls,
            self.keys,
            self.secrets,
            self.objects,
            self.logs,
            self.run,
        ):
            private_directory(directory)

    def write_stack(self, stack: Stack) -> None:
        write_private(self.stack_file, msgspec.json.format(msgspec.json.encode(stack), indent=2) + b"\n")

    def read_stack(self) -> Stack | None:
        """The running stack as it described itself, or None; unreadable text counts as none."""
        try:
            return msgspec.json.decode(self.stack_file.read_bytes(), type=Stack)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def remove_stack(self) -> None:
        self.stack_file.unlink(missing_ok=True)
