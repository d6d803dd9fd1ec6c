"""A dataset as a directory of Parquet files that other tools read: `unit=START-END/part-00000.parquet`.

The directory is a copy of one moment. A second run fetches only units that changed since, and removes those that are
gone. `_trace_export.json` lists every file; it is written last. While a run changes the directory, and after one that
was interrupted, its `complete` is false, and the next run completes the directory.

A unit appears whole: it is fetched beside its place, in a directory whose name begins with a dot, and renamed. One run
at a time may change a directory. A directory with anything that is not of such a run is refused.
"""

import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.client.content import ApiContent, ApiFile, ApiLiveSource, choose_columns
from tracelake.client.errors import ClientError
from tracelake.client.live_reading import LiveFiles, PinnedLive, fit
from tracelake.client.pinned_rows import SpooledRows
from tracelake.private_files import sync_directory, write_private
from tracelake.wire.content import ContentRequest, RowsRequest

MANIFEST = "_trace_export.json"
_LOCK = ".trace_export.lock"
_KEY, _OTHER_KEY = "unit", "dataset_unit"
"""The second one if the dataset has a column `unit`."""
_WHOLE, _TABLE = "all", "table"
_UNIT = re.compile(rf"(?:{_KEY}|{_OTHER_KEY})=(?:[0-9]+-[0-9]+|{_WHOLE}|{_TABLE})")
_SCRATCH = re.compile(r"\.(?:new|old)-[0-9a-f]{16}")


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """Below the directory."""
    size: int
    sha256: str


class ExportedUnit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    unit: str
    """`START-END`; `all` for a dataset without ranges; `table` for rows of a table."""
    dataset_version: UUID | None = None
    revision: int | None = None
    """Both absent for rows of a table, which every run fetches again."""
    files: list[ExportedFile]


class ExportManifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a directory holds; the content of `_trace_export.json`."""

    format: int = 1
    dataset: str
    complete: bool
    exported_at: datetime
    key: str = _KEY
    """The name before `=` in the names of directories."""
    boundary: int | None = None
    """Of a live dataset: rows up to this position are in files of units, those above it in `table`."""
    units: list[ExportedUnit]


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has done."""

    directory: str
    units: int
    fetched: int
    unchanged: int
    removed: int
    files: int
    bytes: int


def export_directory(
    content: ApiContent,
    request: ContentRequest,
    directory: Path,
    on_progress: Callable[[int, int], object] = lambda _done, _all: None,
) -> ExportReport:
    """Makes the directory a copy of the dataset as it is now. `on_progress` gets the units done, and all of them."""
    _check(directory)
    with closing(_DirectoryUpdate(content, request, directory, on_progress)) as run:
        units = run.look_up()  # of a dataset that cannot be read, no directory is made
        directory.mkdir(mode=0o700, exist_ok=True)
        with _lock(directory):
            return run.update(units, _read_manifest(directory, content.dataset))


def read_manifest(directory: Path) -> ExportManifest:
    """Raises `export_incomplete` if the directory is not a whole copy."""
    try:
        manifest = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=ExportManifest)
    except (OSError, msgspec.MsgspecError):
        raise ClientError("export_incomplete", f"{directory} has no manifest that can be read: export again") from None
    if not manifest.complete:
        raise ClientError("export_incomplete", f"{directory} is being changed, or a run was interrupted: export again")
    return manifest


class _DirectoryUpdate:
    def __init__(
        self,
        content: ApiContent,
        request: ContentRequest,
        directory: Path,
        on_progress: Callable[[int, int], object],
    ) -> None:
        self._content, self._request, self._directory = content, request, directory
        self._on_progress = on_progress
        self._before: ExportManifest | None = None
        self._key = _KEY
        self._schema: pa.Schema | None = None
        """Of a live dataset: the types of its table, which its files get too."""
        self._boundary: int | None = None
        self._rows: SpooledRows | None = None
        """Rows of a table."""

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()

    def look_up(self) -> dict[str, list[ApiFile]]:
        """The files of each unit. Rows of a table are fetched at once: they are of the same moment."""
        reply, files = self._content.list_files(self._request)
        if reply.columns is not None and not reply.live:
            columns = choose_columns(self._content.dataset, reply.columns, None, self._request.start)
            rows = RowsRequest(columns=[column.name for column in columns])
            self._rows = SpooledRows(lambda file: self._content.download_rows(rows, file.write))
        elif reply.columns is not None:
            columns = choose_columns(self._content.dataset, reply.columns, None, None)
            source = ApiLiveSource(self._content, self._request, LiveFiles(files, reply.boundary))
            pinned = PinnedLive(source, columns, (self._request.start, self._request.end), None)
            files, self._boundary, self._rows = list(pinned.files), pinned.boundary, pinned.rows
            with closing(self._rows.pieces()) as pieces:
                self._schema = next(pieces).schema
        units: dict[str, list[ApiFile]] = {}
        for file in files:
            units.setdefault(_unit_name(file), []).append(file)
        return units

    def update(self, units: dict[str, list[ApiFile]], before: ExportManifest | None) -> ExportReport:
        """`before` is that of the run before."""
        self._before = before
        self._key = _KEY if before is None else before.key
        done: dict[str, ExportedUnit] = {}
        for name, files in units.items():
            if (unchanged := self._find_unchanged(name, files)) is not None:
                done[name] = unchanged
        unchanged_units = len(done)
        all_units = len(units) + (self._rows is not None)
        self._write_manifest([*done.values()], complete=False)
        self._remove_scratch()
        for name, files in units.items():
            if name not in done:
                self._on_progress(len(done), all_units)
                done[name] = self._fetch(name, files)
        if self._rows is not None:
            self._on_progress(len(done), all_units)
            done[_TABLE] = self._fetch(_TABLE, [])
        self._on_progress(len(done), all_units)
        removed = self._remove_others(done)
        ordered = [done[name] for name in (*units, *([_TABLE] if self._rows is not None else []))]
        self._write_manifest(ordered, complete=True)
        exported = [file for unit in ordered for file in unit.files]
        return ExportReport(
            directory=str(self._directory),
            units=len(ordered),
            fetched=len(ordered) - unchanged_units,
            unchanged=unchanged_units,
            removed=removed,
            files=len(exported),
            bytes=sum(file.size for file in exported),
        )

    def _find_unchanged(self, name: str, files: list[ApiFile]) -> ExportedUnit | None:
        """The unit, if an earlier run has fetched it and its files are there."""
        place = self._place(name)
        recorded = next(
            (unit for unit in ([] if self._before is None else self._before.units) if unit.unit == name), None
        )
        expected = (files[0].version, files[0].unit.revision)
        if recorded is not None and (recorded.dataset_version, recorded.revision) == expected:
            sizes = {self._directory / file.path: file.size for file in recorded.files}
            if _sizes(place) == sizes:
                return recorded
        # An interrupted run may have fetched it: files as they were committed are known by their hashes.
        hashes = {place / _part(number): file.sha256 for number, file in enumerate(files)}
        if self._schema is None and _sizes(place).keys() == hashes.keys() and None not in hashes.values():
            unit = self._describe(name, files, place)
            if all(hashes[self._directory / file.path] == file.sha256 for file in unit.files):
                return unit
        return None

    def _fetch(self, name: str, files: list[ApiFile]) -> ExportedUnit:
        scratch = self._scratch("new")
        scratch.mkdir(mode=0o700)
        try:
            if name == _TABLE:
                self._write_rows(scratch / _part(0))
            for number, file in enumerate(files):
                self._download(file, scratch / _part(number))
            self._choose_key(scratch)
            for path in scratch.iterdir():
                path.chmod(0o600)
                with path.open("rb") as parquet_file:
                    os.fsync(parquet_file.fileno())
            sync_directory(scratch)
            place = self._place(name)
            if place.exists():
                old = self._scratch("old")
                place.rename(old)
                scratch.rename(place)
                shutil.rmtree(old)
            else:
                scratch.rename(place)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return self._describe(name, files, place)

    def _download(self, file: ApiFile, path: Path) -> None:
        self._content.download(file, path)
        if self._schema is not None:
            with pq.ParquetFile(path) as parquet:
                table = fit(parquet.read(), self._schema)
            pq.write_table(table, path, compression="zstd")

    def _write_rows(self, path: Path) -> None:
        assert self._rows is not None
        with closing(self._rows.pieces()) as pieces:
            first = next(pieces)
            with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
                writer.write_table(first)
                for piece in pieces:
                    writer.write_table(piece)

    def _choose_key(self, fetched: Path) -> None:
        """A column of the files must not be one of the directories, too."""
        if self._key == _KEY:
            for path in fetched.iterdir():
                if _KEY in pq.read_schema(path).names:
                    self._key = _OTHER_KEY

    def _describe(self, name: str, files: list[ApiFile], place: Path) -> ExportedUnit:
        paths = sorted(_sizes(place))
        return ExportedUnit(
            unit=name,
            dataset_version=files[0].version if files else None,
            revision=files[0].unit.revision if files else None,
            files=[
                ExportedFile(
                    path=path.relative_to(self._directory).as_posix(), size=path.stat().st_size, sha256=_hash(path)
                )
                for path in paths
            ],
        )

    def _remove_others(self, done: dict[str, ExportedUnit]) -> int:
        unit_names = {self._place(name).name for name in done}
        directories = [path for path in self._directory.iterdir() if _UNIT.fullmatch(path.name)]
        others = [path for path in directories if path.name not in unit_names]
        for path in others:
            shutil.rmtree(path)
        return len(others)

    def _remove_scratch(self) -> None:
        for path in self._directory.iterdir():
            if _SCRATCH.fullmatch(path.name):
                shutil.rmtree(path)

    def _write_manifest(self, units: list[ExportedUnit], *, complete: bool) -> None:
        manifest = ExportManifest(
            dataset=self._content.dataset,
            complete=complete,
            exported_at=datetime.now(UTC),
            key=self._key,
            boundary=self._boundary,
            units=units,
        )
        write_private(self._directory / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")

    def _place(self, name: str) -> Path:
        return self._directory / f"{self._key}={name}"

    def _scratch(self, kind: str) -> Path:
        return self._directory / f".{kind}-{secrets.token_hex(8)}"


def _unit_name(file: ApiFile) -> str:
    return _WHOLE if file.unit.start is None else f"{file.unit.start}-{file.unit.end}"


def _part(number: int) -> str:
    return f"part-{number:05d}.parquet"


def _sizes(place: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in place.iterdir()} if place.is_dir() else {}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(directory: Path) -> None:
    """Raises for a directory that cannot be one of ours, before anything is fetched for it."""
    if not directory.parent.is_dir():
        raise ClientError("directory_missing", f"there is no directory {directory.parent}: create it first")
    if not directory.exists():
        return
    if not directory.is_dir():
        raise ClientError("directory_missing", f"{directory} is not a directory: name another")
    names = {path.name for path in directory.iterdir()}
    if names and MANIFEST not in names and _LOCK not in names:
        raise ClientError(
            "directory_not_empty", f"{directory} holds other files: name a directory that is new or empty"
        )


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ClientError("export_running", f"another export changes {directory}: wait for it to end") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _read_manifest(directory: Path, dataset: str) -> ExportManifest | None:
    """That of the run before; raises if the directory is of another dataset."""
    try:
        manifest = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=ExportManifest)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        raise ClientError(
            "directory_not_empty", f"{directory / MANIFEST} is not of this version: name a new directory"
        ) from None
    if manifest.dataset != dataset:
        raise ClientError(
            "directory_not_empty", f"{directory} is a copy of {manifest.dataset}: name another directory for {dataset}"
        )
    return manifest
