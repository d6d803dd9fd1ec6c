"""HOME: where everything of one stack lives, and `stack.json`, by which programs find it.

Every directory is 0700 and every file with a secret is 0600. A file is replaced whole or not at all, so
that a power cut leaves the old text or the new one.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from tracelake.client.stack import LocalStack
from tracelake.private_files import private_directory, sync_directory, write_private

__all__ = ["CredentialFiles", "Home", "HomeError", "LocalStack", "private_directory", "sync_directory", "write_private"]


class HomeError(Exception):
    """The directory cannot be a home; the message says why."""


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Where the tokens of a stack are kept."""

    worker_token: Path
    service_token: Path
    admin_token: Path


class Home:
    """The paths of one stack; `make` creates the directories."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.postgres = root / "postgres"
        self.postgres_state = self.postgres / "state"
        self.postgres_data = self.postgres / "data"
        self.tls = root / "tls"
        self.keys = root / "keys"
        self.secrets = root / "secrets"
        self.objects = root / "objects"
        self.spark = root / "spark"
        """Temporary files of Spark, and copies of files; may be removed while nothing runs."""
        self.query = root / "query"
        self.runner = root / "runner"
        """Copies of files of the Query Service; may be removed while nothing runs."""
        self.logs = root / "logs"
        self.run = root / "run"
        self.lock_file = self.run / "up.lock"
        self.parts_file = self.run / "parts.json"
        """The state of the parts, which `trace up` writes and `trace status` reads."""
        self.renewal_file = self.run / "renewal.json"
        """How the last renewals of credentials went; `trace status` and the Dispatcher read it."""
        self.ports_file = self.run / "ports.json"
        """The ports of the last run, which the next one takes again."""
        self.restore_file = self.run / "restore.json"
        """There while a restore of the whole stack is not finished: nothing may start on this home."""
        self.stack_file = root / "stack.json"
        self.settings_file = root / "settings.toml"
        self.rpc_file = root / "rpc.toml"
        """Written by the user: RPC endpoints by name."""
        self.secrets_file = root / "secrets.toml"
        """Written by the user: secrets of jobs, by org."""
        self.state_dsn_file = self.secrets / "state.dsn"
        self.queue_dsn_file = self.secrets / "queue.dsn"
        self.data_dsn_file = self.secrets / "data.dsn"
        self.data_read_dsn_file = self.secrets / "data_read.dsn"
        self.rpc_environment_file = self.secrets / "rpc.json"
        self.secrets_environment_file = self.secrets / "job-secrets.json"
        self.object_store_file = self.secrets / "object-store.json"
        self.object_store_config = self.secrets / "object-store"

    def log_file(self, part: str) -> Path:
        return self.logs / f"{part}.log"

    def make(self) -> None:
        """Creates the directories. A directory that holds other files is not turned into a home."""
        if self.root.is_dir() and not self.run.is_dir():
            ours = (self.settings_file, self.rpc_file, self.secrets_file)
            others = sorted(path.name for path in self.root.iterdir() if path not in ours)
            if others:
                raise HomeError(f"{self.root} is not a home of trace and not empty ({others[0]}); give another --home")
        private_directory(self.root)
        for directory in (self.postgres, self.tls, self.keys, self.secrets, self.objects, self.logs, self.run):
            private_directory(directory)

    def write_stack(self, stack: LocalStack) -> None:
        write_private(self.stack_file, msgspec.json.format(msgspec.json.encode(stack), indent=2) + b"\n")

    def read_stack(self) -> LocalStack | None:
        """The running stack as it described itself, or None; unreadable text counts as none."""
        try:
            return msgspec.json.decode(self.stack_file.read_bytes(), type=LocalStack)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def remove_stack(self) -> None:
        self.stack_file.unlink(missing_ok=True)
