"""Restores a dump: the state database of a home becomes what a dump says, and goes on safely from there.

The dump is loaded into a database beside the real one, brought to this release's schema and made safe there (see
`rewind`); only then do the two change names, in one transaction, and only after that is the queue emptied. So a dump
that cannot be used, or a crash at any moment, leaves the old state with its queue, or the new one, to which messages of
the old queue do no harm. What a crash leaves behind is dropped by a second run, or by `trace up` (see `leftovers`).

The stack is down meanwhile: whoever restores holds the home's lock and runs the state cluster itself.
"""

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import asyncpg
import msgspec

from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.db import Database, MigrationError, migrate, migrations
from tracelake.db.migrate import Connection
from tracelake.db.transaction import Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.loops.reconciler import Reconciler
from tracelake.dispatcher.metrics import Metrics
from tracelake.model.buffered import quoted
from tracelake.settings import Settings
from tracelake.stack import dumps, leftovers, lock
from tracelake.stack.clusters import Clusters
from tracelake.stack.dumps import BackupError, Dump
from tracelake.stack.machine import PostgresError
from tracelake.stack.postgres import DatabaseSpec, EmbeddedPostgres
from tracelake.stack.provision import migrate_dsn, provision
from tracelake.stack.rewind import Rewound, rewind

_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RestorePlace:
    """The state database, and the addresses that reach it while it is being replaced."""

    state: str
    administer: str
    """The DSN of a third database, by a role that may create and rename databases."""
    owner: Callable[[str], str]
    """The DSN of a database by the role that owns the state."""
    queue: str
    queue_users: tuple[str, ...]
    cluster: EmbeddedPostgres | None

    @property
    def restored(self) -> str:
        return leftovers.restored(self.state)

    @property
    def replaced(self) -> str:
        return leftovers.replaced(self.state)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    made_at: str
    tasks: int
    events: int
    migrated: list[str]
    wake_ups: int
    messages_dropped: int = 0
    leftovers_dropped: list[str] = []
    """Databases that an earlier restore had left."""
    rewound: Rewound


Adjust = Callable[[Connection], Awaitable[None]]
"""Changes a loaded database before it takes the place of the other."""


async def _keep_as_it_is(_connection: Connection) -> None:
    pass


def restore(settings: Settings, dump: Dump, config: DispatcherConfig) -> Report:
    """Replace the state of these settings by the dump, under the lock of the home."""
    settings.layout.make()
    with lock.hold(settings.layout.lock_file):
        return restore_state(settings, dump, config)


def restore_state(settings: Settings, dump: Dump, config: DispatcherConfig, adjust: Adjust = _keep_as_it_is) -> Report:
    """Replace the state of these settings by the dump. The caller holds the lock of the home."""
    with _place(settings) as place:
        return asyncio.run(_restore(place, dump, config, adjust))


def restore_data(settings: Settings, dump: Dump) -> None:
    """Replace the data database of these settings by the dump. The caller holds the lock of the home, and restores the
    state of the same moment after this."""
    with _data_place(settings) as place:
        asyncio.run(_restore_data(place, dump))


async def _restore_data(place: RestorePlace, dump: Dump) -> None:
    async with _connected(place.administer) as administrator:
        await _check_unused(administrator, place.state)
        await leftovers.drop(administrator, place.state)
        try:
            await _make(administrator, place)
            _load(dump, place.owner(place.restored))
            async with _connected(place.owner(place.restored)) as restored:
                await _migrate(restored, dump, "data")
                await restored.execute("TRUNCATE buffer_staging")  # its tables are not in a dump
                await restored.execute("ANALYZE")
            await _change_names(administrator, place)
        finally:
            await leftovers.drop(administrator, place.state)


@contextlib.contextmanager
def _place(settings: Settings) -> Iterator[RestorePlace]:
    """The databases of these settings, running."""
    cluster = Clusters.plan(settings).state
    if cluster is None:
        yield _own_place(settings.resolve_state_dsn(), settings.resolve_queue_dsn())
        return
    with _embedded_place(cluster, "state") as place:
        owner = next(spec.owner for spec in cluster.databases if spec.name == "queue")
        yield replace(place, queue=cluster.dsn(owner, "queue"), queue_users=("trace_queue",))


@contextlib.contextmanager
def _data_place(settings: Settings) -> Iterator[RestorePlace]:
    """The data database of these settings, running. It has no queue."""
    cluster = Clusters.plan(settings).data
    if cluster is None:
        yield _own_place(settings.resolve_data_dsn(), "")
        return
    with _embedded_place(cluster, "data") as place:
        yield place


def _own_place(dsn: str, queue: str) -> RestorePlace:
    return RestorePlace(
        state=dumps.single_database_of(dsn),
        administer=dumps.with_database(dsn, "postgres"),
        owner=lambda database: dumps.with_database(dsn, database),
        queue=queue,
        queue_users=(),
        cluster=None,
    )


@contextlib.contextmanager
def _embedded_place(cluster: EmbeddedPostgres, name: str) -> Iterator[RestorePlace]:
    # The owner may reach the two other names as well, for as long as this lasts: `trace up` writes the rules anew.
    (spec,) = (spec for spec in cluster.databases if spec.name == name)
    open_spec = replace(spec, access=f'"/^{spec.name}(_restored|_replaced)?$"')
    others = (other for other in cluster.databases if other != spec)
    cluster = replace(cluster, databases=(open_spec, *others), tcp=False)
    with _running(cluster):
        yield RestorePlace(
            state=spec.name,
            administer=cluster.superuser_dsn(),
            owner=lambda database: cluster.dsn(spec.owner, database),
            queue="",
            queue_users=(),
            cluster=cluster,
        )


@contextlib.contextmanager
def _running(cluster: EmbeddedPostgres) -> Iterator[None]:
    process = cluster.start()
    try:
        # Recovery after a crash takes as long as it takes.
        while not asyncio.run(cluster.ready()):
            if process.poll() is not None:
                raise PostgresError(
                    f"the {cluster.name} cluster does not start ({cluster.last_words()}); "
                    f"see {cluster.log_file}, or restore into a new home (--home)"
                )
            time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _restore(
    place: RestorePlace, dump: Dump, config: DispatcherConfig, adjust: Adjust = _keep_as_it_is
) -> Report:
    async with _connected(place.administer) as administrator:
        await _check_unused(administrator, place.state)
        dropped_leftovers = await leftovers.drop(administrator, place.state)
        try:
            await _make(administrator, place)
            _load(dump, place.owner(place.restored))
            report = await _make_safe(place, dump, config, adjust)
            async with _connected(place.queue):
                pass  # better refused now than after the next step
            await _change_names(administrator, place)
            dropped = await _empty_queue(place)
        finally:
            # Either the new one, given up, or the old one, replaced.
            await leftovers.drop(administrator, place.state)
    return msgspec.structs.replace(report, messages_dropped=dropped, leftovers_dropped=dropped_leftovers)


async def _check_unused(administrator: Connection, state: str) -> None:
    sessions = await administrator.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'", state
    )
    if sessions:
        raise BackupError(
            f"the database {state} is still used ({sessions} sessions); stop every Dispatcher, worker and sink first"
        )


async def _make(administrator: Connection, place: RestorePlace) -> None:
    if place.cluster is None:
        try:
            await administrator.execute(f"CREATE DATABASE {quoted(place.restored)} TEMPLATE template0")
        except asyncpg.InsufficientPrivilegeError:
            raise BackupError(
                "the role of state_dsn may not create databases; give it CREATEDB for a restore"
            ) from None
        return
    owner = next(spec.owner for spec in place.cluster.databases if spec.name == place.state)
    beside = DatabaseSpec(place.restored, owner)
    await provision(replace(place.cluster, databases=(*place.cluster.databases, beside)))


def _load(dump: Dump, dsn: str) -> None:
    options = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")
    ended = dumps.run_program("pg_restore", *options, str(dump.file), dsn=dsn)
    if ended.returncode != 0:
        raise BackupError(f"{dump.file} cannot be loaded, and nothing was changed: {dumps.reason(ended)}")


async def _make_safe(place: RestorePlace, dump: Dump, config: DispatcherConfig, adjust: Adjust) -> Report:
    """Prepares the loaded state to take the place of the other: migrations, rewind, wake-ups."""
    dsn = place.owner(place.restored)
    store = Store(dsn, size=2, name="state", command_timeout=600.0)
    await store.open()
    try:
        async with _connected(dsn) as restored:
            migrated = await _migrate(restored, dump)
            await adjust(restored)
            async with _connected_if_there(place.owner(place.state)) as replaced:
                rewound = await rewind(restored, store, replaced, config)
            wake_ups = await _wake(store, place.queue, config)
            await restored.execute("ANALYZE")
            counts = await restored.fetchrow(
                "SELECT (SELECT count(*) FROM tasks) AS tasks, (SELECT count(*) FROM events) AS events"
            )
            assert counts is not None
    finally:
        await store.close()
    return Report(
        file=str(dump.file),
        made_at=dump.made_at,
        tasks=counts["tasks"],
        events=counts["events"],
        migrated=migrated,
        wake_ups=wake_ups,
        rewound=rewound,
    )


async def _migrate(restored: Connection, dump: Dump, database: Database = "state") -> list[str]:
    try:
        return await migrate(restored, migrations(database))
    except MigrationError as error:
        raise BackupError(f"{dump.file} does not fit this release, and nothing was changed: {error}") from None


async def _empty_queue(place: RestorePlace) -> int:
    """The last thing that happens. A crash before it leaves messages about tasks of the lost time: whoever takes one is
    told that there is no such task, or that it is not to be had now."""
    try:
        await migrate_dsn(place.queue, "queue", users=place.queue_users)
        async with _connected(place.queue) as queue:
            dropped: int = await queue.fetchval(
                "SELECT (SELECT count(*) FROM messages) + (SELECT count(*) FROM dead_letters)"
            )
            await queue.execute("TRUNCATE messages, dead_letters")
    except (OSError, BackupError, MigrationError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise BackupError(
            f"the state is restored, but the queue could not be emptied ({type(error).__name__}): start the stack, its "
            "old messages do no harm; `trace outbox drop --all` drops its dead letters"
        ) from None
    return dropped


class _SoonEmpty(PostgresQueue):
    """The queue as it is going to be: it has lost everything."""

    async def absent(self, queue: str, keys: Sequence[str]) -> set[str]:  # noqa: ARG002 - every one is
        return set(keys)


async def _wake(store: Store, queue_dsn: str, config: DispatcherConfig) -> int:
    """A wake-up for everything that is ready: the reconciler's work, without its time of grace."""
    queue = _SoonEmpty(queue_dsn)
    try:
        return await Reconciler(store, queue, replace(config, reconcile_grace_seconds=0.0), Metrics()).run_once()
    finally:
        await queue.close()


async def _change_names(administrator: Connection, place: RestorePlace) -> None:
    try:
        async with administrator.transaction():
            if await administrator.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", place.state):
                await administrator.execute(f"ALTER DATABASE {quoted(place.state)} RENAME TO {quoted(place.replaced)}")
            await administrator.execute(f"ALTER DATABASE {quoted(place.restored)} RENAME TO {quoted(place.state)}")
    except asyncpg.ObjectInUseError:
        raise BackupError(
            f"somebody has begun to use the database {place.state}; stop every Dispatcher, worker and sink first"
        ) from None


@contextlib.asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Connection]:
    try:
        connection = await asyncpg.connect(dsn, timeout=30.0)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        # Its text may repeat parts of the DSN.
        raise BackupError(f"a database of the restore cannot be reached ({type(error).__name__})") from None
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def _connected_if_there(dsn: str) -> "AsyncIterator[Connection | None]":
    try:
        connection = await asyncpg.connect(dsn, timeout=30.0)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        yield None  # what is lost cannot be asked
        return
    try:
        yield connection
    finally:
        await connection.close()
