"""HOME: where everything of one stack lives, and `stack.json`, by which programs find it.

Every directory is 0700 and every file with a secret is 0600. A file is replaced whole or not at all, so
that a power cut leaves the old text or the new one.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from tracelake.client.stack import Stack
from tracelake.private_files import private_directory, sync_directory, write_private

__all__ = ["CredentialFiles", "Home", "HomeError", "Stack", "private_directory", "sync_directory", "write_private"]


class HomeError(Exception):
    """The directory cannot be a home; the message says why."""


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
    def spark(self) -> Path:
        """What Spark leaves on the way, and copies of files; may be removed while nothing runs."""
        return self.root / "spark"

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
    def renewal_file(self) -> Path:
        """How the last renewals of credentials went; `trace status` and the Dispatcher read it."""
        return self.run / "renewal.json"

    @property
    def ports_file(self) -> Path:
        """The ports of the last run, which the next one takes again."""
        return self.run / "ports.json"

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

    @property
    def data_read_dsn_file(self) -> Path:
        return self.secrets / "data_read.dsn"

    @property
    def rpc_file(self) -> Path:
        """The person's: RPC endpoints by name."""
        return self.root / "rpc.toml"

    @property
    def rpc_environment_file(self) -> Path:
        return self.secrets / "rpc.json"

    @property
    def secrets_file(self) -> Path:
        """The person's: secrets of jobs, by org."""
        return self.root / "secrets.toml"

    @property
    def secrets_environment_file(self) -> Path:
        return self.secrets / "job-secrets.json"

    @property
    def object_store_file(self) -> Path:
        return self.secrets / "object-store.json"

    @property
    def object_store_config(self) -> Path:
        return self.secrets / "object-store"

    def log_file(self, part: str) -> Path:
        return self.logs / f"{part}.log"

    def make(self) -> None:
        """Make the directories. A directory that holds other things is not turned into a home."""
        if self.root.is_dir() and not self.run.is_dir():
            ours = (self.settings_file, self.rpc_file, self.secrets_file)
            others = sorted(path.name for path in self.root.iterdir() if path not in ours)
            if others:
                raise HomeError(f"{self.root} is not a home of trace and not empty ({others[0]}); give another --home")
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
