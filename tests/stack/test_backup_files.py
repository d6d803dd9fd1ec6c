"""Whether a backup is recognised as complete and undamaged, whatever was done to its files."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.ports import ObjectMeta, hash_file
from tracelake.settings.home import Home
from tracelake.stack import backup_files, full_restore
from tracelake.stack.backup_files import (
    MANIFEST,
    OBJECTS_LIST,
    SUMS,
    BackupManifest,
    content_path,
    describe_object,
    verify_backup,
    write_sums,
)
from tracelake.stack.dumps import BackupError


def make(directory: Path) -> Path:
    """A backup with two objects of the same content, whose dumps are no dumps."""
    (directory / "home" / "keys").mkdir(parents=True)
    (directory / "home" / "keys" / "webhook.key").write_text("key")
    for name in ("state.dump", "data.dump"):
        (directory / name).write_text(f"the dump {name}")
    content = directory / "content"
    content.write_text("rows")
    digest = hash_file(content)
    target = directory / content_path(digest)
    target.parent.mkdir(parents=True)
    content.rename(target)
    metas = [ObjectMeta(f"s3://datasets/{name}", 4, "etag", digest) for name in ("a", "b/c")]
    (directory / OBJECTS_LIST).write_bytes(b"".join(map(describe_object, metas)))
    write_manifest(directory)
    write_sums(directory)
    return directory


def write_manifest(directory: Path, **changes: object) -> None:
    fields: dict[str, object] = {
        "release": "0",
        "made_at": "2026-11-18T12:00:00+00:00",
        "buckets": ["datasets"],
        "objects": 2,
        "object_bytes": 8,
        "missing": 0,
        "has_secrets": True,
    }
    manifest = msgspec.convert(fields | changes, BackupManifest)
    (directory / MANIFEST).write_bytes(msgspec.json.encode(manifest))


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    return make(tmp_path / "backup")


def test_a_whole_backup(backup: Path) -> None:
    verified = verify_backup(backup)
    assert [(path.read_text(), item.uri) for path, item in verified.objects()] == [
        ("rows", "s3://datasets/a"),
        ("rows", "s3://datasets/b/c"),
    ]
    assert [name.as_posix() for name in verified.home_files()] == ["keys/webhook.key"]


def cut(path: str) -> Callable[[Path], None]:
    return lambda backup: os.truncate(backup / path, (backup / path).stat().st_size - 1)


def remove(path: str) -> Callable[[Path], None]:
    return lambda backup: (backup / path).unlink()


def write(path: str, text: str) -> Callable[[Path], object]:
    return lambda backup: (backup / path).write_text(text)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (remove(SUMS), "not a complete backup: it has no readable SHA256SUMS"),
        (cut(SUMS), "SHA256SUMS is cut off"),
        (write(SUMS, ""), "SHA256SUMS is cut off"),
        (write(SUMS, "\n"), "line 1 of SHA256SUMS is not a hash and a path"),
        (write(SUMS, f"{'0' * 64}  ../elsewhere\n"), "../elsewhere is missing"),
        (cut("state.dump"), "state.dump does not have the hash"),
        (remove("data.dump"), "data.dump is missing"),
        (write("data.dump", "the dump data_dump"), "data.dump does not have the hash"),
        (cut(OBJECTS_LIST), "objects.jsonl does not have the hash"),
        (write("home/keys/another.key", "planted"), "home/keys/another.key is not in SHA256SUMS"),
        (lambda backup: (backup / "home" / "link").symlink_to("/etc/passwd"), "home/link is neither a file nor"),
    ],
)
def test_what_was_changed_is_refused(backup: Path, change: Callable[[Path], object], text: str) -> None:
    change(backup)
    with pytest.raises(BackupError) as refused:
        verify_backup(backup)
    assert text in str(refused.value)


def test_what_is_missing_from_the_sums_as_well_is_refused(backup: Path) -> None:
    """As if the last lines had been cut off, and their files with them."""
    for name in ("data.dump", MANIFEST):
        (backup / name).unlink()
    write_sums(backup)
    with pytest.raises(BackupError, match=r"data\.dump is missing"):
        verify_backup(backup)


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("s3://others/a", "no bucket of it"),
        ("s3://datasets/../a", "no bucket of it"),
        ("s3://datasets/a/", "no bucket"),
    ],
)
def test_addresses_that_a_backup_never_holds_are_refused(backup: Path, uri: str, text: str) -> None:
    digest = next((backup / "objects").rglob("*/*")).name
    (backup / OBJECTS_LIST).write_bytes(describe_object(ObjectMeta(uri, 4, "etag", digest)))
    write_manifest(backup, objects=1)
    write_sums(backup)
    with pytest.raises(BackupError, match="no bucket of it"):
        verify_backup(backup)


def test_counts_and_formats(backup: Path) -> None:
    write_manifest(backup, objects=3)
    write_sums(backup)
    with pytest.raises(BackupError, match=r"expected 3 objects, objects\.jsonl has 2"):
        verify_backup(backup)
    write_manifest(backup, format=2)
    write_sums(backup)
    with pytest.raises(BackupError, match="has format 2, and this release reads 1"):
        verify_backup(backup)
    (backup / MANIFEST).write_text('{"format": 1, "more": 1}')
    write_sums(backup)
    with pytest.raises(BackupError, match=r"manifest\.json"):
        verify_backup(backup)
    missing = describe_object(ObjectMeta("s3://datasets/a", 4, "etag", "0" * 64))
    (backup / OBJECTS_LIST).write_bytes(missing)
    write_manifest(backup, objects=1)
    write_sums(backup)
    with pytest.raises(BackupError, match="the content of s3://datasets/a is missing"):
        verify_backup(backup)


def test_a_dump_is_no_such_backup(tmp_path: Path) -> None:
    (tmp_path / "state.dump").write_text("x")
    with pytest.raises(BackupError, match="a dump is loaded without --all"):
        verify_backup(tmp_path / "state.dump")


@given(st.text(max_size=200))
def test_any_text_of_sums_is_read_or_refused(text: str) -> None:
    try:
        sums = backup_files._read_sums(Path("backup"), text)
    except BackupError:
        return
    assert "".join(f"{digest}  {path}\n" for path, digest in sums.items()) == text


def test_an_unfinished_restore_is_known_even_if_its_file_is_not_readable(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.make()
    assert full_restore.find_unfinished(home) is None
    full_restore.refuse_unfinished(home)
    home.restore_file.write_text("{")
    with pytest.raises(BackupError, match="was interrupted"):
        full_restore.refuse_unfinished(home)
