"""Objects of a query as local files: fetched once, checked, kept in a bounded cache, and linked for each query.

The service parses none of them: they may have been written by users' code, so only the engine reads them.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tracelake.errors import TraceError
from tracelake.ports import ContentMismatchError, ObjectChangedError, ObjectMeta
from tracelake.storage.file_cache import FileCache
from tracelake.wire.task_calls import DataFile

_THREADS = 32
_FEW = 32
"""So many copies are linked at once, without a thread."""


class QueryFiles:
    def __init__(self, cache: FileCache) -> None:
        self._cache = cache
        # Of their own: a store that does not answer keeps nobody waiting who reads what is here already.
        self._threads = ThreadPoolExecutor(_THREADS, "files")

    async def link(self, files: Sequence[DataFile], directory: Path) -> list[Path]:
        """Each file below `directory`, in the order given. The caller removes the directory when the query ends."""
        metas = [ObjectMeta(file.uri, file.size, file.etag, file.sha256) for file in files]
        if len(metas) <= _FEW and (paths := self._link_kept(metas, directory)) is not None:
            return paths
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._link, metas, directory)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # The threads end with the file that each is at, once the caller has removed the directory.
            work.add_done_callback(_forget)
            raise
        except ContentMismatchError:
            raise TraceError("content_mismatch") from None
        except ObjectChangedError:
            message = "A file of the dataset is not there, or is not what was committed."
            raise TraceError("artifact_missing", message) from None

    def _link_kept(self, files: Sequence[ObjectMeta], directory: Path) -> list[Path] | None:
        directory.mkdir(exist_ok=True)
        paths = self._cache.link_kept(files, directory)
        for path in paths or ():
            make_readable(path)
        return paths

    def _link(self, files: Sequence[ObjectMeta], directory: Path) -> list[Path]:
        directory.mkdir(exist_ok=True)  # below that of the query: if it has ended, there is none
        paths = self._cache.link(files, directory)
        for path in paths:
            make_readable(path)
        return paths


def make_inputs(directory: Path) -> None:
    """The directories that a sandbox sees, for the files and tables of one query; those above may be private."""
    for path in (directory, directory / "files", directory / "tables"):
        path.mkdir(parents=True)
        path.chmod(0o755)


def make_readable(path: Path) -> None:
    """For everybody who can reach it, and writable for nobody: the engine is another user where the service is root."""
    if path.stat().st_mode & 0o777 != 0o444:
        path.chmod(0o444)


def _forget(work: "asyncio.Future[list[Path]]") -> None:
    if not work.cancelled():
        work.exception()
