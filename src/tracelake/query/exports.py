"""Results that are too large for a reply: the Parquet file that the engine wrote, in the object store.

A task's goes below its scratch prefix, which the Dispatcher empties. A person's has an address that opens it for a
while, and is deleted afterwards by this service: its name tells when it was made.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol
from uuid import UUID

import msgspec

from tracelake.errors import StoreUnavailableError
from tracelake.ports import FileTransfer, ObjectStore, UrlSigner
from tracelake.query.slots import QueryCaller
from tracelake.wire.query import ResultDownload
from tracelake.wire.task_calls import DataFile

logger = logging.getLogger(__name__)

_GRACE = timedelta(hours=1)
"""A download that began in time may take a while."""


class ExportTransfer(FileTransfer, UrlSigner, Protocol):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultExports:
    transfer: ExportTransfer
    bucket: str
    download_seconds: int
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def prefix(self) -> str:
        return f"s3://{self.bucket}/queries/"

    async def for_task(self, result: Path, scratch_prefix: str, run_id: UUID) -> str:
        uri = f"{scratch_prefix}queries/{run_id}.parquet"
        await asyncio.to_thread(self._upload, result, uri)
        return uri

    def uri_of(self, caller: QueryCaller, run_id: UUID) -> str:
        """Names the caller by a hash: a subject may have any characters."""
        owner = hashlib.sha256(msgspec.json.encode([caller.subject, caller.dags])).hexdigest()[:32]
        return f"{self.prefix}{caller.org}/{owner}/{run_id}.parquet"

    async def for_user(self, result: Path, caller: QueryCaller, run_id: UUID) -> ResultDownload:
        uri = self.uri_of(caller, run_id)
        size = await asyncio.to_thread(self._upload, result, uri)
        expires_at = self.now() + timedelta(seconds=self.download_seconds)
        (url,) = self.transfer.sign([uri], create=False, seconds=self.download_seconds)
        return ResultDownload(url=url, expires_at=expires_at, size_bytes=size, export_id=run_id)

    def for_owner(self, query_id: UUID, files: Sequence[DataFile]) -> list[ResultDownload]:
        """Addresses of the files of a batch query's result, valid from now on for a while."""
        expires_at = self.now() + timedelta(seconds=self.download_seconds)
        urls = self.transfer.sign([file.uri for file in files], create=False, seconds=self.download_seconds)
        return [
            ResultDownload(url=url, expires_at=expires_at, size_bytes=file.size, query_id=query_id, file=number)
            for number, (url, file) in enumerate(zip(urls, files, strict=True))
        ]

    def _upload(self, result: Path, uri: str) -> int:
        return self.transfer.upload(result, uri).size

    async def delete_expired(self, objects: ObjectStore) -> int:
        deleted = 0
        try:
            async for item in objects.walk(self.prefix):
                if self._is_expired(item.uri):
                    await objects.delete(item.uri)
                    deleted += 1
        except StoreUnavailableError as error:
            logger.warning("expired results were not deleted", extra={"reason": error.code})
        return deleted

    def _is_expired(self, uri: str) -> bool:
        try:
            made_at = datetime.fromtimestamp((UUID(Path(uri).stem).int >> 80) / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            return False
        return made_at + timedelta(seconds=self.download_seconds) + _GRACE < self.now()
