"""What the embedded store has answered is on the disk when a sync returns, for whoever asked before it began."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from tracelake.adapters.disk_sync import DiskSync
from tracelake.errors import StoreUnavailableError


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were synced, in order."""
    paths: list[str] = []

    def fsync(descriptor: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr("tracelake.adapters.disk_sync.os.fsync", fsync)
    return paths


def make_old(path: Path, seconds: int) -> None:
    os.utime(path, (1_000_000 + seconds, 1_000_000 + seconds))


def test_what_changed_is_synced_and_its_directory(tmp_path: Path, synced: list[str]) -> None:
    inner = tmp_path / "filerldb2"
    inner.mkdir()
    volume, log = tmp_path / "1.dat", inner / "000001.log"
    volume.write_bytes(b"a")
    log.write_bytes(b"b")
    sync = DiskSync(tmp_path)
    assert sync.sync() == 4
    assert sorted(synced) == sorted(map(str, (volume, log, inner, tmp_path)))

    for path, seconds in ((volume, 0), (log, 100), (inner, 0), (tmp_path, 0)):
        make_old(path, seconds)
    sync.sync()
    synced.clear()
    with volume.open("ab") as file:
        file.write(b"more")
    make_old(volume, 0)  # grown within the same tick of the clock: its size tells
    sync.sync()
    assert str(volume) in synced
    assert str(inner) not in synced, "nothing was added there"
    assert str(log) in synced, "the newest ones may have changed unseen"


def test_a_file_that_goes_meanwhile_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "000001.log"
    file.write_bytes(b"a")
    real = os.open

    def removing(path: str, flags: int) -> int:
        file.unlink(missing_ok=True)
        return real(path, flags)

    monkeypatch.setattr("tracelake.adapters.disk_sync.os.open", removing)
    assert DiskSync(tmp_path).sync() == 1


def test_calls_share_the_next_sync_and_never_the_one_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[threading.Event] = []
    begun = threading.Semaphore(0)

    def run(_: DiskSync) -> int:
        runs.append(threading.Event())
        begun.release()
        assert runs[-1].wait(30)
        return 0

    monkeypatch.setattr(DiskSync, "sync", run)

    async def scenario() -> None:
        sync = DiskSync(tmp_path)
        first = asyncio.create_task(sync.run())
        await asyncio.to_thread(begun.acquire)
        late = [asyncio.create_task(sync.run()) for _ in range(5)]
        late[0].cancel()  # a caller who leaves takes nobody along
        runs[0].set()
        await first
        await asyncio.to_thread(begun.acquire)
        assert not any(task.done() for task in late[1:]), "the sync that ran when they came is not theirs"
        runs[1].set()
        await asyncio.gather(*late[1:])
        assert len(runs) == 2

    asyncio.run(scenario())


def test_a_disk_that_failed_once_is_not_trusted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel forgets what it could not write: the next fsync would succeed."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def scenario() -> None:
        sync = DiskSync(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr("tracelake.adapters.disk_sync.os.fsync", fail)
            with pytest.raises(StoreUnavailableError):
                await sync.run()
        with pytest.raises(StoreUnavailableError):
            await sync.run()

    asyncio.run(scenario())
