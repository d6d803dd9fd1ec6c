"""The strict reader takes what honest tools make, and refuses everything else with its code, at a bounded cost."""

import io
import os
import random
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bundles.archives import DIRECTORY, EXECUTABLE, RawEntry, make_zip
from tests.bundles.hostile import CORPUS
from tracelake.bundles.archive import REFUSALS, ArchiveLimits, ArchiveRefusal, read_archive, read_content
from tracelake.bundles.building import build_archive
from tracelake.bundles.extraction import extract_archive

LIMITS = ArchiveLimits(max_entries=1000, max_expanded_bytes=16 * 1024**2)


@pytest.mark.parametrize(("code", "data"), CORPUS.values(), ids=list(CORPUS))
def test_a_hostile_archive_is_refused_with_its_code(code: str, data: bytes) -> None:
    with pytest.raises(ArchiveRefusal) as refusal:
        read_archive(data, LIMITS)
    assert refusal.value.code == code
    assert code in REFUSALS
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 400


def test_the_corpus_reaches_every_code() -> None:
    assert {code for code, _ in CORPUS.values()} | {"archive_too_large"} == set(REFUSALS)


def test_an_archive_that_is_too_large_is_not_read() -> None:
    with pytest.raises(ArchiveRefusal, match="at most 10 bytes") as refusal:
        read_archive(bytes(11), ArchiveLimits(max_bytes=10))
    assert refusal.value.code == "archive_too_large"


def test_a_bomb_is_never_held_in_memory() -> None:
    declared = make_zip(RawEntry(content=bytes(15 * 1024**2)))
    limits = ArchiveLimits(max_ratio=2000, max_expanded_bytes=16 * 1024**2)
    tracemalloc.start()
    try:
        read_archive(declared, limits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 1024**2


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_of_the_standard_library_is_read(method: int) -> None:
    contents = {"main.py": b"x" * 100_000, "lib/ä.txt": os.urandom(300_000), "empty": b""}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.mkdir("lib") if hasattr(archive, "mkdir") else None
        for name, content in contents.items():
            archive.writestr(name, content)
    data = buffer.getvalue()
    entries = [entry for entry in read_archive(data, LIMITS) if not entry.is_directory]
    assert {entry.name: b"".join(read_content(data, entry)) for entry in entries} == contents


class _Pipe(io.RawIOBase):
    """A target that cannot seek, so that sizes come behind the content."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.data += bytes(data)  # type: ignore[call-overload]
        return len(bytes(data))  # type: ignore[call-overload]


def test_a_streamed_archive_is_read() -> None:
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("main.py", b"x" * 1000)
        archive.writestr("other.py", b"y" * 1000)
    assert [entry.name for entry in read_archive(bytes(pipe.data), LIMITS)] == ["main.py", "other.py"]
    plain = struct.pack("<3L", 0x8CDC1683, 3, 1)
    without_mark = make_zip(RawEntry(flags=8, content=b"x", descriptor=plain))
    assert len(read_archive(without_mark, LIMITS)) == 1


def test_the_order_of_the_directory_may_differ_from_that_of_the_content() -> None:
    first, second = RawEntry(name=b"a", method=0, content=b"1"), RawEntry(name=b"b", method=0, content=b"2")
    data = bytearray(make_zip(first, second))
    directory = data.index(b"PK\x01\x02")
    size = 46 + 1
    data[directory : directory + 2 * size] = (
        data[directory + size : directory + 2 * size] + data[directory : directory + size]
    )
    assert [entry.name for entry in read_archive(bytes(data), LIMITS)] == ["b", "a"]


def _raw(seed: int) -> bytes:
    entries = [
        RawEntry(name=b"main.py", flags=1 << 11),
        RawEntry(name=b"lib/", content=b"", method=0, mode=DIRECTORY),
        RawEntry(name=b"lib/data", content=random.Random(seed).randbytes(50), method=0),
        RawEntry(name=b"bootstrap", mode=EXECUTABLE, flags=8, content=b"z" * 500),
    ]
    return make_zip(*entries)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 3))
def test_a_damaged_archive_is_refused_or_means_the_same_to_every_reader(
    changes: list[tuple[int, int]], seed: int
) -> None:
    """Whatever is accepted, the standard library reads in the same way: there is one meaning."""
    data = bytearray(_raw(seed))
    for position, value in changes:
        data[position % len(data)] = value
    try:
        entries = read_archive(bytes(data), LIMITS)
    except ArchiveRefusal:
        return
    ours = {entry.name: b"".join(read_content(bytes(data), entry)) for entry in entries if not entry.is_directory}
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as archive:
        theirs = {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}
    assert ours == theirs


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 400))
def test_bytes_of_any_kind_are_refused_without_a_fault(noise: bytes, cut: int, at: int) -> None:
    data = _raw(0)
    for hostile in (noise, data[:cut], data[cut:], data[:at] + noise + data[at:], noise + data, data + noise):
        if hostile == data:
            continue
        with pytest.raises(ArchiveRefusal):
            read_archive(hostile, LIMITS)


def test_extraction_writes_what_the_entries_say(tmp_path: Path) -> None:
    data = _raw(1)
    extract_archive(data, read_archive(data, LIMITS), tmp_path)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "bootstrap", "lib", "lib/data", "main.py",
    ]  # fmt: skip
    assert (tmp_path / "bootstrap").stat().st_mode & 0o777 == 0o555
    assert (tmp_path / "main.py").stat().st_mode & 0o777 == 0o444


def test_extraction_follows_no_link_and_replaces_nothing(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    inside.mkdir()
    (inside / "main.py").symlink_to(outside)
    data = _raw(1)
    with pytest.raises(FileExistsError):
        extract_archive(data, read_archive(data, LIMITS), inside)
    assert not outside.exists()


def _tree(directory: Path, *, order: int) -> Path:
    files = {"main.py": "pass\n", "lib/a.py": "1\n", "lib/b.py": "2\n", "__pycache__/x.pyc": "", "tests/t.py": "t"}
    for name, content in sorted(files.items(), key=lambda item: item[0], reverse=bool(order)):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        os.utime(path, (order * 10**8 + 10**9,) * 2)
    (directory / "lib/a.py").chmod(0o755 if order else 0o700)
    (directory / "main.py").chmod(0o600 if order else 0o664)
    return directory


def test_equal_directories_make_equal_archives(tmp_path: Path) -> None:
    leave_out = frozenset({"tests"})
    builds = [
        build_archive(_tree(tmp_path / str(order), order=order), LIMITS, leave_out=leave_out) for order in range(2)
    ]
    assert builds[0] == builds[1]
    data, names = builds[0]
    assert names == ["lib/a.py", "lib/b.py", "main.py"]
    assert [entry.executable for entry in read_archive(data, LIMITS)] == [True, False, False]


@pytest.mark.parametrize("name", ["link.py", "directory"])
def test_a_directory_with_a_link_is_not_built(tmp_path: Path, name: str) -> None:
    _tree(tmp_path / "bundle", order=0)
    (tmp_path / "bundle" / name).symlink_to(tmp_path)
    with pytest.raises(ArchiveRefusal) as refusal:
        build_archive(tmp_path / "bundle", LIMITS)
    assert refusal.value.code == "link"
