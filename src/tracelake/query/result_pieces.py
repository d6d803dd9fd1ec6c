"""Results by pieces: files of exported results and of batch queries, for callers who cannot reach the object store.

The addresses in replies are those of the object store, which of an embedded one is the stack's own machine. Here the
same files come through the service, with the caller's token, a piece at a time. An export belongs to the caller who got
it: its address has a hash of who that was, and with which DAGs, so that nobody else's call leads to it.
"""

from dataclasses import dataclass, field
from uuid import UUID

from tracelake.errors import TraceError
from tracelake.http.fair_slots import FairSlots
from tracelake.ports import ObjectStore
from tracelake.query.batch import BatchQueryFront
from tracelake.query.exports import ResultExports
from tracelake.query.slots import QueryCaller
from tracelake.tokens.users import UserClaims
from tracelake.wire.content import PIECE_BYTES

_AT_ONCE = 4
_OF_ONE_ORG = 2
_WAITING = 200


@dataclass(frozen=True, slots=True)
class ResultPieces:
    objects: ObjectStore
    exports: ResultExports
    batch: BatchQueryFront
    fetching: FairSlots = field(
        default_factory=lambda: FairSlots(
            _AT_ONCE, per_org=_OF_ONE_ORG, waiting=_WAITING, retry_after_seconds=1, what="pieces of results"
        )
    )

    async def read_export(self, user: UserClaims, export_id: UUID, offset: int) -> bytes:
        caller = QueryCaller(org=user.org, subject=user.sub, is_task=False, dags=user.readable_dags)
        uri = self.exports.uri_of(caller, export_id)
        async with self.fetching.slot(user.org):
            meta = await self.objects.head(uri)
            if meta is None:
                raise TraceError("query_not_found")
            return await self._read(uri, meta.size, meta.etag, offset)

    async def read_batch(self, user: UserClaims, query_id: UUID, number: int, offset: int) -> bytes:
        files = await self.batch.list_files(user, query_id)
        if number >= len(files):
            raise TraceError("body_invalid", f"Expected a file below {len(files)}; received {number}.", field="file")
        file = files[number]
        async with self.fetching.slot(user.org):
            return await self._read(file.uri, file.size, file.etag, offset)

    async def _read(self, uri: str, size: int, etag: str, offset: int) -> bytes:
        if not 0 <= offset < size:
            raise TraceError("body_invalid", f"Expected an offset below {size}; received {offset}.", field="offset")
        length = min(PIECE_BYTES, size - offset)
        piece = await self.objects.read(uri, offset, length, if_match=etag)
        if piece is None or len(piece) != length:
            raise TraceError("content_mismatch", "The file is missing, or differs from the committed one.")
        return piece
