"""Reading documents: who does it, and each org in its turn."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from tracelake.catalogue import read_config
from tracelake.dag import Surroundings, TypedDag, located, read_typed_dag
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.http.fair_slots import FairSlots
from tracelake.model.dag import Problem

RETRY_AFTER_SECONDS = 5


class DocumentReader(Protocol):
    """Reads documents, and never on the event loop: a document may be a megabyte of queries."""

    async def read(self, text: bytes, surroundings: Surroundings) -> TypedDag:
        """Raises DagInvalidError, or TraceError where reading takes too much."""
        ...

    async def locate(self, text: bytes, problems: Sequence[Problem]) -> list[Problem]: ...

    async def check_config(self, operator: str, config: dict[str, Any]) -> None:
        """Raises TraceError `job_invalid`."""
        ...

    async def close(self) -> None: ...


class ThreadReader:
    """Reads documents in threads, for tests and tools: nothing limits what a document costs."""

    async def read(self, text: bytes, surroundings: Surroundings) -> TypedDag:
        return await asyncio.to_thread(read_typed_dag, text, surroundings)

    async def locate(self, text: bytes, problems: Sequence[Problem]) -> list[Problem]:
        return await asyncio.to_thread(located, text, problems)

    async def check_config(self, operator: str, config: dict[str, Any]) -> None:
        await asyncio.to_thread(read_config, operator, config)

    async def close(self) -> None:
        return


class FairReader:
    """A reader that orgs share in turns. Where there are several places, one org never has all of them."""

    def __init__(self, reader: DocumentReader, config: DispatcherConfig) -> None:
        self._reader = reader
        self._slots = FairSlots(
            config.document_processes,
            per_org=max(1, config.document_processes - 1),
            waiting=config.document_queue,
            retry_after_seconds=RETRY_AFTER_SECONDS,
            what="documents",
        )

    async def read(self, org: str, text: bytes, surroundings: Surroundings) -> TypedDag:
        async with self._slots.slot(org):
            return await self._reader.read(text, surroundings)

    async def locate(self, org: str, text: bytes, problems: Sequence[Problem]) -> list[Problem]:
        async with self._slots.slot(org):
            return await self._reader.locate(text, problems)

    async def check_config(self, org: str, operator: str, config: dict[str, Any]) -> None:
        """For platform services, which are not refused for being too many."""
        async with self._slots.slot(org, patient=True):
            await self._reader.check_config(operator, config)
