"""What it costs that the files of a unit are on the disk before the unit is committed (`object_store_sync`).

    python -m benchmarks.durability [--quick | --smoke]

Each commit puts a unit's files (one of 1 MiB, two of 64 KiB, the marker) into an embedded object store of its own, as
a task does, and then does what the Dispatcher does before it commits: a sync, or nothing. Both are interleaved, one
commit at a time and eight at once. The last line is one JSON object of medians. The disk below the temporary directory
counts: name another by TMPDIR.

- `commit_ms`, `commit_synced_ms`: one commit at a time. `synced_ratio`: round by round, with its quartiles.
- `parallel_commit_ms`, `parallel_synced_ms`, `parallel_ratio`: the same per commit, eight at once; they share syncs.
- `idle_sync_ms`: a sync when nothing was written: the look at the files alone.
"""

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from benchmarks.support.options import parse_scale, say
from benchmarks.support.stats import Series, interleave, ratio
from tracelake.adapters.disk_sync import DiskSync
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.stack.seaweedfs import EmbeddedObjectStore, StorePorts

AT_ONCE = 8
START_SECONDS = 60.0


@contextmanager
def running_store() -> Iterator[EmbeddedObjectStore]:
    with tempfile.TemporaryDirectory(prefix="trace-durability-") as directory:
        root = Path(directory)
        store = EmbeddedObjectStore(
            root / "objects", root / "access.json", root / "config", root / "log", StorePorts.choose()
        )
        store.prepare()
        with store.log_file.open("ab") as log:
            process = subprocess.Popen(
                store.command(), env=store.environment(), stdout=log, stderr=log, start_new_session=True
            )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not store.ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the object store did not start")
                time.sleep(0.05)
            yield store
        finally:
            process.kill()
            process.wait()
            store.clean_up()


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

    def sync_idle(self) -> float:
        self._sync.sync()
        started = time.perf_counter()
        self._sync.sync()
        return (time.perf_counter() - started) * 1000


def _show(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms"


async def measure(store: EmbeddedObjectStore, commits: int, rounds: int) -> dict[str, object]:
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


def main() -> None:
    scale = parse_scale(__doc__)
    with running_store() as store:
        result = asyncio.run(measure(store, scale.pick(60, 30, 4), scale.pick(9, 5, 1)))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
