"""Dumps of databases: the Postgres programs that write and read them, and what a file of them says of itself.

The programs are those of the embedded clusters. A password reaches them through their environment, which only this
user can read, and never as an argument; a program does not outlive this process.
"""

import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit

from tracelake.stack.machine import binary, wrap

# Tables of the first migration: what lacks one of them never was a state database of ours.
STATE_TABLES = frozenset({"datasets", "events", "jobs", "orgs", "outbox", "schema_migrations", "tasks"})
DATA_TABLES = frozenset({"buffer_commits", "buffer_tables", "schema_migrations"})
_TABLE_DATA = re.compile(r"^\d+; \d+ \d+ TABLE DATA public (\w+) ", re.MULTILINE)
_MADE_AT = re.compile(r"^;\s+Archive created at (.+)$", re.MULTILINE)


class BackupError(Exception):
    """A dump cannot be written or used; the message says what a person can do."""


@dataclass(frozen=True, slots=True)
class Dump:
    file: Path
    made_at: str
    """The time in the file, by the clock of the machine that wrote it."""


def write(file: Path, dsn: str, *options: str, snapshot: str | None = None) -> None:
    """Dumps a database into the file, as it is now or at an exported snapshot. Raises BackupError."""
    arguments = [*options] if snapshot is None else [*options, f"--snapshot={snapshot}"]
    ended = run_program("pg_dump", "--format=custom", "--no-privileges", f"--file={file}", *arguments, dsn=dsn)
    if ended.returncode != 0:
        raise BackupError(_refusal(reason(ended)))


def _refusal(message: str) -> str:
    if "server version mismatch" in message:
        return "the state database is of a newer Postgres than the programs of this release; use its own pg_dump"
    if "connection to server" in message:
        return "the state database does not answer; a dump needs a running stack (`trace status`, `trace up`)"
    return f"the dump failed: {message}"


def inspect(file: Path, tables: frozenset[str] = STATE_TABLES) -> Dump:
    """Reads the header of the file. Raises BackupError unless it is a dump of a database with these tables."""
    listing = run_program("pg_restore", "--list", str(file))
    if listing.returncode != 0:
        raise BackupError(f"{file} is not a dump that `trace backup` wrote, or it is incomplete: {reason(listing)}")
    missing = tables - set(_TABLE_DATA.findall(listing.stdout))
    if missing:
        raise BackupError(f"{file} is a dump of some other database: it has no table {min(missing)}")
    made_at = _MADE_AT.search(listing.stdout)
    return Dump(file, made_at[1].strip() if made_at else "an unknown time")


def run_program(name: str, *arguments: str, dsn: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run one of the Postgres programs, against this database if it needs one.

    To be called from the main thread: what is started ends with the thread that started it.
    """
    # PG* variables of the caller would change which server is asked, and how.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    environment["LC_ALL"] = "C"
    command = [str(binary(name)), *arguments]
    if dsn is not None:
        address, password = without_password(dsn)
        command.append(f"--dbname={address}")
        if password is not None:
            environment["PGPASSWORD"] = password
    return subprocess.run(
        wrap(command, death_signal=signal.SIGKILL),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def reason(ended: "subprocess.CompletedProcess[str]") -> str:
    """The first thing that a program complained about."""
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    complaint = next((line for line in lines if "error:" in line), lines[0] if lines else f"status {ended.returncode}")
    return complaint.partition("error: ")[2] or complaint


def without_password(dsn: str) -> tuple[str, str | None]:
    """The address for a command line, and the password for an environment.

    A password is before the host or, if it is not, among the parameters: the order in which the stack itself looks.
    """
    parts = urlsplit(dsn)
    passwords = [] if not parts.password else [unquote(parts.password)]
    parameters = []
    for parameter in parts.query.split("&"):
        name, _, value = parameter.partition("=")
        match unquote_plus(name):
            case "password":
                passwords.append(unquote_plus(value))
            case "sslpassword":
                raise BackupError(
                    "state_dsn has an sslpassword, which cannot be handed on without showing it to every user of this "
                    "machine; use a key without one, in a file that only you can read"
                )
            case _:
                parameters.append(parameter)
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}{at}{host}"
    return _joined(parts._replace(netloc=netloc, query="&".join(parameters))), passwords[0] if passwords else None


def with_database(dsn: str, database: str) -> str:
    """The address of another database, by the same role on the same server."""
    return _joined(urlsplit(dsn)._replace(path=f"/{database}"))


def _joined(parts: SplitResult) -> str:
    """The address of the parts. Not by `urlunsplit`, which leaves out the slashes before an empty host."""
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query}"


def single_database_of(dsn: str) -> str:
    """The database of an address whose other databases `with_database` can name."""
    parameters = {unquote_plus(parameter.partition("=")[0]) for parameter in urlsplit(dsn).query.split("&")}
    if not database_of(dsn) or parameters & {"dbname", "database", "service"}:
        raise BackupError("state_dsn must name its database after the host, as in postgresql://user@host:5432/database")
    return database_of(dsn)


def database_of(dsn: str) -> str:
    return unquote(urlsplit(dsn).path.lstrip("/"))
