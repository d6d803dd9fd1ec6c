"""Writes a backup of a whole stack while it runs: state, tables, objects, and the files of its home.

Order: the home's own files, one snapshot of both databases (`joint_snapshot`), their dumps, then the objects. Objects
that the snapshot names existed before it and never change, so a copy that begins after it has them all, unless
retention has deleted one since; that is noticed. Objects that are newer than the snapshot may be in the copy and do no
harm: no later attempt uses their names again (`rewind`).

The directory appears under its name when it is complete and on disk. Until then it is a hidden directory beside it,
which the next backup to that place removes if its writer is gone.
"""

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import msgspec

from tracelake import __version__
from tracelake.adapters.s3.object_copies import ObjectCopies
from tracelake.ports import ObjectMeta
from tracelake.settings import Settings, SettingsError
from tracelake.settings.home import Home, sync_directory
from tracelake.stack import backup_files as layout
from tracelake.stack import dumps
from tracelake.stack.backup_files import BackupManifest
from tracelake.stack.dumps import BackupError
from tracelake.stack.joint_snapshot import JointSnapshot, open_joint_snapshot

Say = Callable[[str], None]
"""Tells a person how far it is."""

# Files that the state promises to readers, and batches that sinks have still to merge.
_NAMED = """
    SELECT f->>'uri' AS uri, f->>'sha256' AS sha256 FROM manifests, json_array_elements(objects) AS f
    UNION ALL
    SELECT batch_uri, sha256 FROM buffer_publishes
    WHERE released_at IS NOT NULL AND committed_at IS NULL AND dropped_at IS NULL AND collected_at IS NULL"""

_THREADS = 8
_PAGE = 256
_TELL_SECONDS = 2.0


class FullBackupReport(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    made_at: str
    bytes: int
    objects: int
    object_bytes: int
    missing: list[str]
    """Files that the state names and the store does not have, or has with other bytes."""
    has_secrets: bool


@dataclass(frozen=True, slots=True)
class _Copied:
    objects: int
    bytes: int
    missing: list[str]


def write_backup(
    settings: Settings, directory: Path, *, with_secrets: bool, allow_missing: bool, say: Say
) -> FullBackupReport:
    """Raises BackupError, and leaves nothing, if the backup cannot be made."""
    directory = directory.absolute()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BackupError(f"{directory} exists; name another directory")
    try:
        dsns = settings.resolve_state_dsn(), settings.resolve_data_dsn()
    except SettingsError:
        raise BackupError(f"{settings.home} has no databases yet; `trace up` creates them") from None
    with _partial_directory(directory) as partial:
        copy_home(settings.layout, partial / layout.HOME, with_secrets=with_secrets)
        made_at, named_files = asyncio.run(_dump(partial, *dsns, say))
        copied = _copy_objects(settings, partial, named_files, say)
        if copied.missing and not allow_missing:
            raise BackupError(
                f"files that the state names ({len(copied.missing)}) are not in the object store as they were "
                f"committed, the first is {copied.missing[0]}: if versions were removed just now, repeat the backup; "
                "if the store has lost them, add --allow-missing"
            )
        manifest = BackupManifest(
            release=__version__,
            made_at=made_at,
            buckets=list_buckets(settings),
            objects=copied.objects,
            object_bytes=copied.bytes,
            missing=len(copied.missing),
            has_secrets=with_secrets,
        )
        (partial / layout.MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        say("writing hashes")
        layout.write_sums(partial)
        size = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
        os.sync()
        try:
            partial.rename(directory)
        except OSError as error:
            raise BackupError(f"{directory} cannot be created ({error.strerror}); name another directory") from None
        sync_directory(directory.parent)
    return FullBackupReport(
        directory=str(directory),
        made_at=made_at,
        bytes=size,
        objects=copied.objects,
        object_bytes=copied.bytes,
        missing=copied.missing,
        has_secrets=with_secrets,
    )


def list_buckets(settings: Settings) -> list[str]:
    return sorted({settings.dataset_bucket, settings.scratch_bucket, settings.bundle_bucket})


def copy_home(home: Home, target: Path, *, with_secrets: bool) -> None:
    """Copies the files of the home that are needed besides databases and objects; any of them may hold a secret.

    Passwords of the embedded databases and the key of the embedded store are not needed: a new home has its own.
    """
    target.mkdir(mode=0o700)
    if not with_secrets:
        return
    files = [home.settings_file, home.rpc_file, home.secrets_file]
    files += [path for root in (home.keys, home.tls) for path in root.rglob("*") if path.is_file()]
    for source in files:
        copy = target / source.relative_to(home.root)
        with contextlib.suppress(FileNotFoundError):  # rotated away in this moment
            text = source.read_bytes()
            copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            copy.write_bytes(text)


@contextlib.contextmanager
def _partial_directory(directory: Path) -> Iterator[Path]:
    """A private directory beside the given one; gone at the end unless it was renamed."""
    prefix, suffix = f".{directory.name}.", ".partial"
    for path in directory.parent.glob(f"{prefix}*{suffix}") if directory.parent.is_dir() else ():
        _remove_abandoned(path)
    try:
        partial = Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=directory.parent))
    except FileNotFoundError:
        raise BackupError(f"there is no directory {directory.parent}; make it, or name another place") from None
    except OSError as error:
        raise BackupError(
            f"nothing can be written in {directory.parent} ({error.strerror}); name another place"
        ) from None
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    umask = os.umask(0o077)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield partial
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        raise BackupError(f"the backup cannot be written to {directory.parent}: {error.strerror}") from None
    finally:
        os.umask(umask)
        shutil.rmtree(partial, ignore_errors=True)
        os.close(descriptor)


def _remove_abandoned(path: Path) -> None:
    """Removes what a killed backup left: its lock is free."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


async def _dump(partial: Path, state_dsn: str, data_dsn: str, say: Say) -> tuple[str, dict[str, str | None]]:
    """Dumps both databases as they were at one moment; returns when that was, and the files that the state names."""
    async with open_joint_snapshot(state_dsn, data_dsn) as snapshot:
        say("dumping the state database")
        dumps.write(partial / layout.STATE_DUMP, state_dsn, snapshot=snapshot.state)
        say("dumping the data database: tables of buffered, direct and live datasets")
        # Tables in which sinks load batches come and go; a lock on one would hold up its sink.
        dumps.write(partial / layout.DATA_DUMP, data_dsn, "--exclude-table=staging.*", snapshot=snapshot.data)
        return snapshot.made_at, await _list_named(snapshot)


async def _list_named(snapshot: JointSnapshot) -> dict[str, str | None]:
    """The address and the hash of each file; None where the hash was never recorded."""
    return {row["uri"]: row["sha256"] for row in await snapshot.connection.fetch(_NAMED)}


def _copy_objects(settings: Settings, partial: Path, named_files: dict[str, str | None], say: Say) -> _Copied:
    store = ObjectCopies(settings.resolve_object_store())
    contents = partial / layout.OBJECTS
    contents.mkdir()
    absent = dict(named_files)
    count = size = 0
    told_at = time.monotonic()

    def fetch(uri: str) -> ObjectMeta | None:
        path = contents / secrets.token_hex(16)
        meta = store.fetch(uri, path)
        if meta is not None:
            _store_content(partial, path, meta)
        return meta

    say("copying objects")
    uris = chain.from_iterable(store.list(bucket) for bucket in list_buckets(settings))
    with ThreadPoolExecutor(_THREADS) as threads, (partial / layout.OBJECTS_LIST).open("wb") as lines:
        while page := list(islice(uris, _PAGE)):
            for meta in threads.map(fetch, page):
                if meta is None:  # deleted since it was listed
                    continue
                lines.write(layout.describe_object(meta))
                count, size = count + 1, size + meta.size
                if absent.get(meta.uri, "") in (None, meta.sha256):
                    del absent[meta.uri]
            if time.monotonic() - told_at > _TELL_SECONDS:
                told_at = time.monotonic()
                say(f"copying objects: {count:,} so far, {size / 2**20:,.0f} MiB")
    return _Copied(count, size, sorted(absent))


def _store_content(partial: Path, path: Path, meta: ObjectMeta) -> None:
    assert meta.sha256 is not None
    target = partial / layout.content_path(meta.sha256)
    target.parent.mkdir(exist_ok=True)
    path.replace(target)
