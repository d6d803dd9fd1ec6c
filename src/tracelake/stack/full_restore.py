"""Restores a backup of a whole stack: objects, tables and state of a home become what the backup holds.

Everything is verified before anything changes (`backup_files`). Then, in this order:

1. files of the home, where it has none of its own: a key that was given up after a leak must not be good again;
2. objects: what is there already with the same bytes stays, others are written;
3. the data database, loaded beside the other one and renamed;
4. the state database, in the same way, made safe to go on from (`rewind`).

No transaction spans these, so a file in the home (`run/restore.json`) says from the second step to the last that the
home is between two states. While it is there, `trace up` refuses to start, and the same restore may be repeated: each
step does what is missing.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from tracelake.adapters.s3.access import S3Access
from tracelake.adapters.s3.object_copies import ObjectCopies
from tracelake.db.migrate import Connection
from tracelake.ports import ObjectMeta
from tracelake.private_files import create_private, private_directory, write_private
from tracelake.settings import Settings, SettingsError
from tracelake.settings.configs import dispatcher_config
from tracelake.settings.home import Home
from tracelake.stack import backup_files as layout
from tracelake.stack import dumps, lock
from tracelake.stack.backup_files import BackupObject, VerifiedBackup
from tracelake.stack.clusters import plan_object_store
from tracelake.stack.dumps import BackupError
from tracelake.stack.full_backup import Say, list_buckets
from tracelake.stack.restore import Report, restore_data, restore_state

_THREADS = 8
_PAGE = 256
_TELL_SECONDS = 2.0
_STOP_SECONDS = 60.0

# A store that computes another ETag for the same bytes would refuse every reader: what was pinned follows it.
_CHANGED_ETAGS = "CREATE TEMPORARY TABLE changed_etags (uri text PRIMARY KEY, etag text NOT NULL) ON COMMIT DROP"
_ADJUST_MANIFESTS = """
    UPDATE manifests m SET objects = (
        SELECT json_agg(CASE WHEN c.etag IS NULL THEN f.file
            ELSE (f.file::jsonb || jsonb_build_object('etag', c.etag))::json END ORDER BY f.number)
        FROM json_array_elements(m.objects) WITH ORDINALITY AS f (file, number)
        LEFT JOIN changed_etags c ON c.uri = f.file->>'uri')
    WHERE EXISTS (
        SELECT FROM json_array_elements(m.objects) AS f (file) JOIN changed_etags c ON c.uri = f.file->>'uri')"""
_ADJUST_PUBLISHES = "UPDATE buffer_publishes p SET etag = c.etag FROM changed_etags c WHERE c.uri = p.batch_uri"
_ADJUST_POINTERS = """
    UPDATE outbox o SET body = (o.body::jsonb || jsonb_build_object('etag', c.etag))::json
    FROM changed_etags c WHERE o.kind = 'buffer_batch' AND o.body->>'batch_uri' = c.uri"""


class UnfinishedRestore(msgspec.Struct, frozen=True, kw_only=True):
    """What `run/restore.json` says while a restore is not finished."""

    backup: str
    identity: str
    own_groups: list[str] = []
    """Groups of files, such as `keys`, that the home had before: they stay."""


class FullRestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    backup: str
    made_at: str
    home: str
    objects: int
    etags_changed: int
    files_written: list[str]
    files_kept: list[str]
    """Files of the backup that the home had already, and kept."""
    state: Report


@dataclass(frozen=True, slots=True)
class _Uploaded:
    count: int
    changed_etags: dict[str, str]


def find_unfinished(home: Home) -> UnfinishedRestore | None:
    """The restore that this home is in the middle of, if any."""
    try:
        return msgspec.json.decode(home.restore_file.read_bytes(), type=UnfinishedRestore)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        return UnfinishedRestore(backup="BACKUP", identity="")


def refuse_unfinished(home: Home) -> None:
    """Raises BackupError if a restore of the home was interrupted."""
    unfinished = find_unfinished(home)
    if unfinished is not None:
        raise BackupError(
            f"a restore of {home.root} was interrupted, and its parts do not fit each other: run "
            f"`trace restore --all {unfinished.backup} --home {home.root}` again, which finishes it"
        )


def restore_backup(
    load_settings: Callable[[], Settings], backup: VerifiedBackup, *, replace: bool, say: Say
) -> FullRestoreReport:
    """`load_settings` is called again once the settings of the backup are in the home."""
    settings = load_settings()
    home = settings.layout
    home.make()
    with lock.hold(home.lock_file):
        _check_stores(settings, backup, replace=replace)
        marker = _begin(home, backup, replace=replace)
        new_files, own_files = _write_home(home, backup, marker)
        try:
            settings = load_settings()  # with the settings of the backup, if the home had none
            _check_stores(settings, backup, replace=replace)
        except (BackupError, SettingsError):
            for name in new_files:
                (home.root / name).unlink(missing_ok=True)
            home.restore_file.unlink()
            raise
        say("writing objects")
        with _object_store(settings) as access:
            uploaded = _upload(ObjectCopies(access), backup, say)
        os.sync()  # the state that names them is committed after this
        say("loading the data database")
        restore_data(settings, dumps.inspect(backup.directory / layout.DATA_DUMP, dumps.DATA_TABLES))
        say("loading the state database")

        async def adjust(connection: Connection) -> None:
            await adjust_etags(connection, uploaded.changed_etags)

        dump = dumps.inspect(backup.directory / layout.STATE_DUMP)
        report = restore_state(settings, dump, dispatcher_config(settings), adjust)
        home.restore_file.unlink()
    return FullRestoreReport(
        backup=str(backup.directory),
        made_at=backup.manifest.made_at,
        home=str(home.root),
        objects=uploaded.count,
        etags_changed=len(uploaded.changed_etags),
        files_written=new_files,
        files_kept=own_files,
        state=report,
    )


def _begin(home: Home, backup: VerifiedBackup, *, replace: bool) -> UnfinishedRestore:
    """Marks the home. Raises BackupError unless it is empty, half restored from this very backup, or to be replaced."""
    unfinished = find_unfinished(home)
    if unfinished is not None and unfinished.identity == backup.identity:
        return unfinished
    if not replace and (any(home.postgres.iterdir()) or any(home.objects.iterdir())):
        raise BackupError(
            f"{home.root} holds a stack already: name another --home, or add --replace to replace its data"
        )
    groups = [group for group in (home.keys, home.tls) if any(path.is_file() for path in group.rglob("*"))]
    marker = UnfinishedRestore(
        backup=str(backup.directory.absolute()), identity=backup.identity, own_groups=[group.name for group in groups]
    )
    write_private(home.restore_file, msgspec.json.encode(marker) + b"\n")
    return marker


def _check_stores(settings: Settings, backup: VerifiedBackup, *, replace: bool) -> None:
    """Raises BackupError if databases or a store outside the home would be replaced unasked, or do not fit."""
    home = settings.layout
    if list_buckets(settings) != backup.manifest.buckets:
        raise BackupError(
            f"the backup has the buckets {', '.join(backup.manifest.buckets)}, and the settings of {home.root} name "
            f"{', '.join(list_buckets(settings))}: change the settings to those of the backup"
        )
    own = [name for name in ("state_dsn", "data_dsn", "s3_endpoint") if getattr(settings, name) is not None]
    if own and not replace:
        raise BackupError(
            f"the settings name databases or a store of your own ({', '.join(own)}), whose content would be replaced: "
            "add --replace if that is meant"
        )


def _write_home(home: Home, backup: VerifiedBackup, marker: UnfinishedRestore) -> tuple[list[str], list[str]]:
    """Writes the files that the home lacks; returns the names of those, and of the files that it kept.

    Keys and certificates are each kept or written as a whole: parts of two homes do not fit each other.
    """
    new_files, own_files = [], []
    for name in backup.home_files():
        target = home.root / name
        if target.exists() or name.parts[0] in marker.own_groups:
            own_files.append(name.as_posix())
            continue
        private_directory(target.parent)
        create_private(target, (backup.directory / layout.HOME / name).read_bytes())
        new_files.append(name.as_posix())
    return new_files, own_files


@contextlib.contextmanager
def _object_store(settings: Settings) -> Iterator[S3Access]:
    """The object store of these settings, running."""
    store = plan_object_store(settings)
    if store is None:
        yield settings.resolve_object_store()
        return
    store.prepare()
    with store.log_file.open("ab") as log:
        process = subprocess.Popen(
            store.command(),
            env=store.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        while not store.ready():
            if process.poll() is not None:
                raise BackupError(f"the object store does not start; see {store.log_file}")
            time.sleep(0.1)
        yield store.access()
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        store.clean_up()


def _upload(store: ObjectCopies, backup: VerifiedBackup, say: Say) -> _Uploaded:
    def put(item: tuple[Path, BackupObject]) -> tuple[BackupObject, str]:
        path, entry = item
        return entry, store.put(path, ObjectMeta(entry.uri, entry.size, entry.etag, entry.sha256))

    count = 0
    changed: dict[str, str] = {}
    told_at = time.monotonic()
    objects = backup.objects()
    with ThreadPoolExecutor(_THREADS) as threads:
        while page := list(islice(objects, _PAGE)):
            for entry, etag in threads.map(put, page):
                count += 1
                if etag != entry.etag:
                    changed[entry.uri] = etag
            if time.monotonic() - told_at > _TELL_SECONDS:
                told_at = time.monotonic()
                say(f"writing objects: {count:,} of {backup.manifest.objects:,}")
    return _Uploaded(count, changed)


async def adjust_etags(connection: Connection, changed_etags: dict[str, str]) -> None:
    """Makes what the state has pinned that of the store."""
    if not changed_etags:
        return
    async with connection.transaction():
        await connection.execute(_CHANGED_ETAGS)
        await connection.copy_records_to_table("changed_etags", records=list(changed_etags.items()))
        for statement in (_ADJUST_MANIFESTS, _ADJUST_PUBLISHES, _ADJUST_POINTERS):
            await connection.execute(statement)
