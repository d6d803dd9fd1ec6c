"""Files of rows that stand for datasets: Parquet, CSV, JSON, or JSON lines.

All of them become Parquet files of the command's own directory. They are the user's own files, read by the user's own
command; queries of the function read the copies in the sandbox of the query engine.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid5

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from tracelake.query.pruning import BLOCK

_NAMESPACE = UUID("6f1d8a52-6f5c-4e0e-9c1a-3a5d0f7b2c11")
_MOST_BYTES = 256 * 1024 * 1024


class UdfTestError(Exception):
    """What was given to the test cannot be used. The message is for people and has the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTable:
    name: str
    path: Path
    """Parquet; nobody writes it any more."""
    size: int
    sha256: str
    row_count: int
    blocks: tuple[int, int] | None
    """The first and the last `block_number`, if there are any."""


def dataset_uuid(name: str) -> UUID:
    """The same in every run, so that tests can rely on it."""
    return uuid5(_NAMESPACE, f"dataset {name}")


def dataset_version(name: str) -> UUID:
    return uuid5(_NAMESPACE, f"version {name}")


def read_sample(name: str, file: Path, directory: Path) -> SampleTable:
    """Copies the rows to `directory`. Raises UdfTestError."""
    read = _READERS.get(file.suffix.lower())
    if read is None:
        expected = ", ".join(_READERS)
        raise UdfTestError(f"{file}: expected a file of rows ({expected}): convert it, or name another file.")
    target = directory / f"{name}.parquet"
    try:
        if not file.is_file():
            raise UdfTestError(f"{file}: there is no such file, the sample of {name}: write it, or name another.")
        if file.stat().st_size > _MOST_BYTES:
            raise UdfTestError(f"{file}: a sample has at most {_MOST_BYTES:,} bytes: take fewer rows.")
        table = read(file)
        if not table.num_columns:
            raise UdfTestError(f"{file}: has no columns: write at least one row.")
        if file.suffix.lower() == ".parquet":
            shutil.copyfile(file, target)
        else:
            pq.write_table(table, target)
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        text = " ".join(str(error).split())
        raise UdfTestError(f"{file}: cannot be read as {file.suffix.lower()[1:]}: {text}") from None
    target.chmod(0o444)
    data = target.read_bytes()
    return SampleTable(
        name=name,
        path=target,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        row_count=table.num_rows,
        blocks=_find_blocks(table),
    )


def find_samples(directory: Path) -> dict[str, Path]:
    """The samples of a directory: each file of rows, by its name without the ending."""
    if not directory.is_dir():
        return {}
    files = sorted(file for file in directory.iterdir() if file.suffix.lower() in _READERS)
    samples: dict[str, Path] = {}
    for file in files:
        if file.stem in samples:
            raise UdfTestError(f"{samples[file.stem]} and {file} are samples of the same name: keep one of them.")
        samples[file.stem] = file
    return samples


def _find_blocks(table: pa.Table) -> tuple[int, int] | None:
    if BLOCK not in table.column_names or not pa.types.is_integer(table.schema.field(BLOCK).type):
        return None
    ends = pc.min_max(table.column(BLOCK)).as_py()
    return None if ends["min"] is None or ends["min"] < 0 else (ends["min"], ends["max"])


def _read_json(file: Path) -> pa.Table:
    """A list of objects, or one object per line."""
    text = file.read_text(encoding="utf-8")
    if not text.lstrip().startswith("["):
        return pyarrow.json.read_json(file)
    rows = json.loads(text)
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected a list of objects")
    return pa.Table.from_pylist(rows)


_READERS: dict[str, Callable[[Path], pa.Table]] = {
    ".parquet": pq.read_table,
    ".csv": pyarrow.csv.read_csv,
    ".json": _read_json,
    ".jsonl": pyarrow.json.read_json,
    ".ndjson": pyarrow.json.read_json,
}
