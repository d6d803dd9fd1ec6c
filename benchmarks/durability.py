"""What it costs to keep files safe: on the disk before a unit is committed, and in a store that is closed to others.

    python -m benchmarks.durability [--quick | --smoke]

Each commit puts a unit's files (one of 1 MiB, two of 64 KiB, the marker) into an embedded object store of its own, as
a task does, and then does what the Dispatcher does before it commits: a sync (`object_store_sync`), or nothing. Both
are interleaved, one commit at a time and eight at once. The same commits, without a sync, then go in turn to that
store, whose inner ports ask for client certificates, and to one beside it whose inner ports are open. The last line is
one JSON object of medians. The disk below the temporary directory counts: name another by TMPDIR.

- `commit_ms`, `commit_synced_ms`: one commit at a time. `synced_ratio`: round by round, with its quartiles.
- `parallel_commit_ms`, `parallel_synced_ms`, `parallel_ratio`: the same per commit, eight at once; they share syncs.
- `idle_sync_ms`: a sync when nothing was written: the look at the files alone.
- `closed_commit_ms`, `open_commit_ms`, `closed_ratio`: with and without mutual TLS between the parts of the store, one
  commit at a time; `parallel_closed_ratio`: eight at once; `closed_read_ratio`: reading the file of 1 MiB back.
- `start_s`, `open_start_s`: from the start of the store to its first answer, from an empty directory.
"""

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

from benchmarks.support.options import parse_scale, say
from benchmarks.support.stats import Series, interleave, ratio
from tracelake.adapters.disk_sync import DiskSync
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.stack.seaweedfs import EmbeddedObjectStore, StorePorts

Figures: TypeAlias = dict[str, object]

AT_ONCE = 8
START_SECONDS = 60.0


@contextmanager
def running_store(*, closed: bool = True, starts: Series | None = None) -> Iterator[EmbeddedObjectStore]:
    """`closed`: with mutual TLS between its parts. `starts`: gets the seconds until it was ready."""
    with tempfile.TemporaryDirectory(prefix="trace-durability-") as directory:
        root = Path(directory)
        store = EmbeddedObjectStore(
            root / "objects", root / "access.json", root / "config", root / "log", StorePorts.choose()
        )
        store.prepare()
        if not closed:
            open_inner_ports(store)
        began = time.perf_counter()
        with store.log_file.open("ab") as log:
            process = subprocess.Popen(
                store.command(), env=store.environment(), stdout=log, stderr=log, start_new_session=True
            )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not store.ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the object store did not start")
                time.sleep(0.02)
            if starts is not None:
                starts.values.append(time.perf_counter() - began)
            yield store
        finally:
            process.kill()
            process.wait()
            store.clean_up()


def open_inner_ports(store: EmbeddedObjectStore) -> None:
    """Take the certificates from the store's settings; its signing keys stay."""
    settings = store.config_dir / ".seaweedfs" / "security.toml"
    sections = settings.read_text().split("[")
    kept = [section for section in sections if section.startswith("jwt.")]
    assert 0 < len(kept) < len(sections) - 1
    settings.write_text("".join(f"[{section}" for section in kept))


class Commits:
    """Commits of units, with and without the sync."""

    def __init__(self, store: EmbeddedObjectStore, commits: int) -> None:
        self._commits = commits
        self._sync = DiskSync(store.data_dir)
        self._objects = S3ObjectStore(store.access(), sync=self._sync.run)
        self._bodies = {"a": os.urandom(1 << 20), "b": os.urandom(1 << 16), "c": os.urandom(1 << 16)}

    async def run(self, *, synced: bool, at_once: int) -> float:
        """Milliseconds per commit."""
        places = asyncio.Semaphore(at_once)

        async def commit() -> None:
            async with places:
                prefix = f"s3://trace-datasets/datasets/{uuid4()}/"
                await asyncio.gather(*(self._objects.put(f"{prefix}{n}.parquet", b) for n, b in self._bodies.items()))
                await self._objects.put(f"{prefix}_SUCCESS", b"")
                if synced:
                    await self._objects.sync()

        started = time.perf_counter()
        await asyncio.gather(*(commit() for _ in range(self._commits)))
        return (time.perf_counter() - started) * 1000 / self._commits

    async def read(self) -> float:
        """Milliseconds per file of 1 MiB."""
        uri = f"s3://trace-datasets/datasets/{uuid4()}/a.parquet"
        await self._objects.put(uri, self._bodies["a"])
        started = time.perf_counter()
        for _ in range(self._commits):
            await self._objects.get(uri)
        return (time.perf_counter() - started) * 1000 / self._commits

    def sync_idle(self) -> float:
        self._sync.sync()
        started = time.perf_counter()
        self._sync.sync()
        return (time.perf_counter() - started) * 1000


def _show(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms"


async def measure(store: EmbeddedObjectStore, commits: int, rounds: int) -> Figures:
    work = Commits(store, commits)
    await work.run(synced=True, at_once=AT_ONCE)  # buckets and volumes are made
    single = await interleave(
        {
            "plain": lambda: work.run(synced=False, at_once=1),
            "synced": lambda: work.run(synced=True, at_once=1),
        },
        rounds,
        say,
        show=_show,
    )
    parallel = await interleave(
        {
            "plain": lambda: work.run(synced=False, at_once=AT_ONCE),
            "synced": lambda: work.run(synced=True, at_once=AT_ONCE),
        },
        rounds,
        say,
        show=_show,
    )
    idle = Series([work.sync_idle() for _ in range(rounds)])
    single_ratio, parallel_ratio = (
        ratio(single["synced"], single["plain"]),
        ratio(parallel["synced"], parallel["plain"]),
    )
    return {
        "benchmark": "durability",
        "commits": commits,
        "rounds": rounds,
        "commit_ms": round(single["plain"].median, 2),
        "commit_synced_ms": round(single["synced"].median, 2),
        "synced_ratio": round(single_ratio.median, 3),
        "synced_ratio_spread": single_ratio.spread,
        "parallel_commit_ms": round(parallel["plain"].median, 2),
        "parallel_synced_ms": round(parallel["synced"].median, 2),
        "parallel_ratio": round(parallel_ratio.median, 3),
        "parallel_ratio_spread": parallel_ratio.spread,
        "idle_sync_ms": round(idle.median, 3),
    }


async def compare(closed: EmbeddedObjectStore, open_store: EmbeddedObjectStore, commits: int, rounds: int) -> Figures:
    """What mutual TLS between the parts of the store costs."""
    stores = {"closed": Commits(closed, commits), "open": Commits(open_store, commits)}
    for work in stores.values():
        await work.run(synced=False, at_once=AT_ONCE)

    async def pairs(read: Callable[[Commits], Awaitable[float]]) -> tuple[dict[str, Series], Series]:
        subjects = {name: partial(read, work) for name, work in stores.items()}
        series = await interleave(subjects, rounds, say, show=_show)
        return series, ratio(series["closed"], series["open"])

    single, single_ratio = await pairs(lambda work: work.run(synced=False, at_once=1))
    _, parallel_ratio = await pairs(lambda work: work.run(synced=False, at_once=AT_ONCE))
    _, read_ratio = await pairs(lambda work: work.read())
    figures: Figures = {name + "_commit_ms": round(series.median, 2) for name, series in single.items()}
    for name, series in (
        ("closed_ratio", single_ratio),
        ("parallel_closed_ratio", parallel_ratio),
        ("closed_read_ratio", read_ratio),
    ):
        figures |= {name: round(series.median, 3), f"{name}_spread": series.spread}
    return figures


def main() -> None:
    scale = parse_scale(__doc__)
    commits, rounds, starts = scale.pick((60, 9, 5), (30, 5, 3), (4, 1, 1))
    closed_starts, open_starts = Series(), Series()
    for _ in range(starts - 1):
        for closed, series in ((True, closed_starts), (False, open_starts)):
            with running_store(closed=closed, starts=series):
                pass
    with running_store(starts=closed_starts) as store:
        result = asyncio.run(measure(store, commits, rounds))
        with running_store(closed=False, starts=open_starts) as open_store:
            result |= asyncio.run(compare(store, open_store, commits, rounds))
    result |= {"start_s": round(closed_starts.median, 2), "open_start_s": round(open_starts.median, 2)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
