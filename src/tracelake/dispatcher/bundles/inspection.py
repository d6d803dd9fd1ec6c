"""Who inspects archives: never the event loop, and each org in its turn."""

import asyncio
from typing import Protocol

from tracelake.bundles.child import InspectionReply, InspectionRequest, inspect_bundle
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.http.fair_slots import FairSlots

_RETRY_AFTER_SECONDS = 5


class BundleInspector(Protocol):
    """Reads archives that nobody trusts."""

    async def inspect(self, request: InspectionRequest, archive: bytes) -> InspectionReply:
        """A refusal is a reply. Raises TraceError if the archive could not be inspected."""
        ...

    async def close(self) -> None: ...


class ThreadInspector:
    """Inspects in threads, for tests and tools: nothing limits what an archive costs."""

    async def inspect(self, request: InspectionRequest, archive: bytes) -> InspectionReply:
        return await asyncio.to_thread(inspect_bundle, request, archive)

    async def close(self) -> None:
        return


def inspection_slots(config: DispatcherConfig) -> FairSlots:
    """Places for archives in memory. Where there are several, one org never has all of them."""
    return FairSlots(
        config.bundle_processes,
        per_org=max(1, config.bundle_processes - 1),
        waiting=config.bundle_open_uploads,
        retry_after_seconds=_RETRY_AFTER_SECONDS,
        what="bundles",
    )
