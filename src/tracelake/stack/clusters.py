"""The embedded databases and object store of one home: which of them there are, and their roles and migrations."""

from dataclasses import dataclass
from pathlib import Path

import asyncpg

from tracelake.db import Database, LockedError
from tracelake.settings import Settings
from tracelake.settings.home import Home, write_private
from tracelake.stack.kept_ports import again, read_ports
from tracelake.stack.machine import socket_directory
from tracelake.stack.postgres import DATA_DATABASES, STATE_DATABASES, DatabaseSpec, EmbeddedPostgres
from tracelake.stack.provision import migrate_dsn, provision
from tracelake.stack.seaweedfs import EmbeddedObjectStore, StorePorts
from tracelake.stack.supervisor import StartError, run_together


@dataclass(frozen=True, slots=True)
class Clusters:
    """The embedded clusters of this home; None where a DSN of the person's own replaces one."""

    state: EmbeddedPostgres | None
    data: EmbeddedPostgres | None

    @classmethod
    def plan(cls, settings: Settings) -> "Clusters":
        home = settings.layout
        state = data = None
        before = read_ports(home.ports_file)
        state_port = settings.state_port or again(before, "state", taken_port=settings.data_port)
        if settings.state_dsn is None:
            state = _cluster(home, "state", home.postgres_state, state_port, STATE_DATABASES)
        if settings.data_dsn is None:
            data_port = settings.data_port or again(before, "data", taken_port=state_port)
            data = _cluster(home, "data", home.postgres_data, data_port, DATA_DATABASES)
        return cls(state, data)

    def all(self) -> list[EmbeddedPostgres]:
        return [cluster for cluster in (self.state, self.data) if cluster is not None]


def plan_object_store(settings: Settings) -> EmbeddedObjectStore | None:
    """None where one of the person's own replaces it."""
    if settings.s3_endpoint is not None:
        return None
    home = settings.layout
    return EmbeddedObjectStore(
        data_dir=home.objects,
        access_file=home.object_store_file,
        config_dir=home.object_store_config,
        log_file=home.log_file("object-store"),
        ports=StorePorts.choose(settings.s3_port, home.object_store_config / "ports.json"),
        private_buckets=(settings.bundle_bucket,),
    )


def _cluster(home: Home, name: str, data_dir: Path, port: int, databases: tuple[DatabaseSpec, ...]) -> EmbeddedPostgres:
    return EmbeddedPostgres(
        name=name,
        data_dir=data_dir,
        socket_dir=socket_directory(home.root),
        secrets_dir=home.secrets,
        log_file=home.log_file(f"postgres-{name}"),
        port=port,
        databases=databases,
    )


async def prepare_databases(settings: Settings, clusters: Clusters) -> None:
    """Roles, migrations, and the DSN files by which the children find their databases."""
    home = settings.layout
    await run_together(*map(provision, clusters.all()))
    if clusters.state is not None:
        state_dsn = clusters.state.dsn("trace_state", "state")
        queue_owner_dsn = clusters.state.dsn("trace_state", "queue")
        queue_dsn = clusters.state.dsn("trace_queue", "queue")
        queue_users: tuple[str, ...] = ("trace_queue",)
    else:
        assert settings.state_dsn is not None
        assert settings.queue_dsn is not None
        state_dsn, queue_dsn, queue_owner_dsn = settings.state_dsn, settings.queue_dsn, settings.queue_dsn
        queue_users = ()
    if clusters.data is not None:
        data_dsn = clusters.data.dsn("trace_data", "data", tcp=True)
        data_read_dsn = clusters.data.dsn("trace_data_reader", "data", tcp=True)
    else:
        assert settings.data_dsn is not None
        data_dsn = settings.data_dsn
        data_read_dsn = settings.data_read_dsn or settings.data_dsn
    await run_together(
        _migrate(state_dsn, "state"),
        _migrate(queue_owner_dsn, "queue", users=queue_users),
        _migrate(data_dsn, "data"),
    )
    write_private(home.state_dsn_file, state_dsn + "\n")
    write_private(home.queue_dsn_file, queue_dsn + "\n")
    write_private(home.data_dsn_file, data_dsn + "\n")
    write_private(home.data_read_dsn_file, data_read_dsn + "\n")


async def _migrate(dsn: str, database: Database, *, users: tuple[str, ...] = ()) -> None:
    try:
        await migrate_dsn(dsn, database, users=users)
    except LockedError as error:
        raise StartError(f"the {database} database cannot be brought to this release now: {error}") from None
    except (OSError, asyncpg.PostgresError) as error:
        raise StartError(f"the {database} database cannot be used: {error}") from None
    except (ValueError, asyncpg.InterfaceError) as error:
        # Their text may repeat parts of the DSN.
        raise StartError(f"{database}_dsn cannot be used ({type(error).__name__})") from None
