"""The files of a backup of a whole stack, and whether they are the ones that were written.

    BACKUP/
      SHA256SUMS       the hash of every other file, as `sha256sum --check` reads it; written last
      manifest.json    what the backup is: release, time, buckets, counts
      state.dump       the state database
      data.dump        the data database: the tables of buffered, direct and live datasets
      objects.jsonl    address, size, hash and ETag of each object
      objects/ab/...   the contents, named by their SHA-256: equal ones are stored once
      home/...         keys, certificates and the files that people write (`*.toml`)

A backup is complete if it has SHA256SUMS, every file that this names has its hash, and there are no other files. The
hashes tell damage, not an attacker, who could write new ones.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tracelake.model.prefixes import parse_uri
from tracelake.ports import ObjectMeta, hash_file
from tracelake.stack.dumps import BackupError

FORMAT = 1
SUMS = "SHA256SUMS"
MANIFEST = "manifest.json"
STATE_DUMP, DATA_DUMP = "state.dump", "data.dump"
OBJECTS_LIST, OBJECTS, HOME = "objects.jsonl", "objects", "home"

_SUM_LINE = re.compile(r"([0-9a-f]{64})  ([^\\\x00-\x1f]+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `manifest.json` says."""

    format: int = FORMAT
    release: str
    made_at: str
    """The time of the snapshot of both databases."""
    buckets: list[str]
    objects: int
    object_bytes: int
    missing: int
    """Files that the state names and the store did not have, by `--allow-missing`."""
    has_secrets: bool


class BackupObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of `objects.jsonl`."""

    uri: str
    size: int
    sha256: str
    etag: str


@dataclass(frozen=True, slots=True)
class VerifiedBackup:
    """A backup whose files are those that were written. `verify_backup` is the way to make one."""

    directory: Path
    manifest: BackupManifest
    identity: str
    """The hash of SHA256SUMS, and so of everything."""

    def objects(self) -> Iterator[tuple[Path, BackupObject]]:
        with (self.directory / OBJECTS_LIST).open("rb") as lines:
            for line in lines:
                item = msgspec.json.decode(line, type=BackupObject)
                yield self.directory / content_path(item.sha256), item

    def home_files(self) -> Iterator[Path]:
        """Paths below `home`, relative to it."""
        root = self.directory / HOME
        return (path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file())


def content_path(sha256: str) -> Path:
    return Path(OBJECTS, sha256[:2], sha256)


def describe_object(meta: ObjectMeta) -> bytes:
    assert meta.sha256 is not None
    return msgspec.json.encode(BackupObject(uri=meta.uri, size=meta.size, sha256=meta.sha256, etag=meta.etag)) + b"\n"


def write_sums(directory: Path) -> None:
    """Makes the backup complete."""
    lines = [f"{hash_file(directory / path)}  {path}\n" for path in _list_files(directory)]
    (directory / SUMS).write_text("".join(lines))


def verify_backup(directory: Path) -> VerifiedBackup:
    """Reads every byte. Raises BackupError unless the backup is complete and undamaged, and of a known format."""
    if directory.is_file():
        raise BackupError(f"{directory} is a file: expected the directory of a backup; a dump is loaded without --all")
    try:
        text = (directory / SUMS).read_text()
    except (FileNotFoundError, UnicodeDecodeError):
        raise BackupError(
            f"{directory} is not a complete backup: it has no readable {SUMS}, which is written last"
        ) from None
    sums = _read_sums(directory, text)
    _compare(directory, "is missing", set(sums) - set(_list_files(directory)))
    _compare(directory, f"is not in {SUMS}", set(_list_files(directory)) - set(sums))
    _compare(directory, "is missing", {STATE_DUMP, DATA_DUMP, OBJECTS_LIST, MANIFEST} - set(sums))
    for path, digest in sums.items():
        if hash_file(directory / path) != digest:
            raise BackupError(f"{directory} is damaged: {path} does not have the hash in {SUMS}; use another backup")
    manifest = _read_manifest(directory)
    backup = VerifiedBackup(directory, manifest, hashlib.sha256(text.encode()).hexdigest())
    _check_objects(backup, sums)
    return backup


def _read_sums(directory: Path, text: str) -> dict[str, str]:
    sums: dict[str, str] = {}
    for number, line in enumerate(text.split("\n")[:-1], 1):
        match = _SUM_LINE.fullmatch(line)
        if match is None or match[2] in sums:
            raise BackupError(f"{directory} is damaged: line {number} of {SUMS} is not a hash and a path")
        sums[match[2]] = match[1]
    if not text.endswith("\n"):
        raise BackupError(f"{directory} is damaged: {SUMS} is cut off")
    return sums


def _compare(directory: Path, problem: str, paths: set[str]) -> None:
    if paths:
        raise BackupError(f"{directory} is not a complete backup: {min(paths)} {problem}")


def _list_files(directory: Path) -> list[str]:
    """Regular files below the directory, but SHA256SUMS. Anything else is nothing that a backup holds."""
    files = []
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise BackupError(f"{directory} is not a backup: {name} is neither a file nor a directory")
        if path.is_file() and name != SUMS:
            files.append(name)
    return files


def _read_manifest(directory: Path) -> BackupManifest:
    try:
        text = (directory / MANIFEST).read_bytes()
        version = msgspec.json.decode(text, type=dict[str, object]).get("format")
        if version != FORMAT:
            raise BackupError(
                f"{directory} has format {version!r}, and this release reads {FORMAT}: restore it with its own release"
            )
        return msgspec.json.decode(text, type=BackupManifest)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{directory} is damaged: {MANIFEST}: {error}") from None


def _check_objects(backup: VerifiedBackup, sums: dict[str, str]) -> None:
    """Each object is in a bucket of the backup, and its content is there."""
    count = 0
    try:
        for _, item in backup.objects():
            count += 1
            place = parse_uri(item.uri)
            if place is None or item.uri.endswith("/") or place[0] not in backup.manifest.buckets:
                raise BackupError(f"{backup.directory} is damaged: {OBJECTS_LIST} has an address of no bucket of it")
            if not _SHA256.fullmatch(item.sha256) or content_path(item.sha256).as_posix() not in sums:
                raise BackupError(f"{backup.directory} is not a complete backup: the content of {item.uri} is missing")
    except msgspec.MsgspecError as error:
        raise BackupError(f"{backup.directory} is damaged: {OBJECTS_LIST}: {error}") from None
    if count != backup.manifest.objects:
        raise BackupError(
            f"{backup.directory} is damaged: expected {backup.manifest.objects} objects, {OBJECTS_LIST} has {count}"
        )
