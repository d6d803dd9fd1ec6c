"""The ObjectStore port over the S3 protocol: SeaweedFS on one machine, S3 in AWS, whatever speaks it elsewhere.

Only canonical addresses are taken. An ETag is the store's own word for the bytes of an object, handed on unchanged.
A store that does not answer, answers with an error of its own, or does not know our credentials is away:
`StoreUnavailableError`, and the caller may try again.
"""

import builtins
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import timedelta

import obstore
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import S3Store

from tracelake.adapters.s3.access import ASKING, S3Access, StorePatience
from tracelake.errors import StoreUnavailableError
from tracelake.model.prefixes import is_canonical_prefix, parse_uri
from tracelake.ports import LISTING_LIMIT, ObjectMeta, too_many_objects

_CONNECT_SECONDS = 5.0
_STATUS = re.compile(r"status code: (\d{3})")


def open_bucket(access: S3Access, name: str, patience: StorePatience) -> S3Store:
    """A client of one bucket. It repeats what failed on the way for a while; longer waits are the caller's."""
    config = {
        "region": access.region,
        "virtual_hosted_style_request": "false",
        "endpoint": access.endpoint,
        "access_key_id": access.access_key,
        "secret_access_key": access.secret_key,
        "session_token": access.session_token,
    }
    options = {name: value for name, value in config.items() if value is not None}
    return S3Store(
        name,
        config=options,  # type: ignore[arg-type]
        client_options={
            "allow_http": (access.endpoint or "").startswith("http://"),
            "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, patience.request_seconds)),
            "timeout": timedelta(seconds=patience.request_seconds),
        },
        retry_config={
            "max_retries": patience.retries,
            "retry_timeout": timedelta(seconds=patience.retry_seconds),
            "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=5), "base": 2},
        },
    )


class S3ObjectStore:
    """`sync`: what is to be done before a put is final, for a store that answers earlier; S3 itself does not."""

    def __init__(
        self, access: S3Access, patience: StorePatience = ASKING, sync: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._access = access
        self._patience = patience
        self._sync = sync
        self._buckets: dict[str, S3Store] = {}

    async def head(self, uri: str) -> ObjectMeta | None:
        store, key = self._object(uri)
        with _away():
            try:
                metadata = await obstore.head_async(store, key)
            except FileNotFoundError:
                return None
        return ObjectMeta(uri, metadata["size"], metadata["e_tag"] or "")

    async def list(self, prefix: str, *, limit: int = LISTING_LIMIT) -> list[ObjectMeta]:
        listing: builtins.list[ObjectMeta] = []
        async with aclosing(self._walk(prefix)) as objects:
            async for meta in objects:
                if len(listing) == limit:
                    raise too_many_objects(limit)
                listing.append(meta)
        return sorted(listing, key=lambda meta: meta.uri)

    def walk(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        return self._walk(prefix)

    async def _walk(self, prefix: str) -> AsyncGenerator[ObjectMeta, None]:
        if not is_canonical_prefix(prefix):
            raise ValueError("not a canonical prefix")
        bucket, key = _parsed(prefix)
        pages = aiter(obstore.list(self._bucket(bucket), key))
        while True:
            with _away():
                try:
                    page = await anext(pages)
                except StopAsyncIteration:
                    return
                except BaseError as error:
                    if "<Code>NoSuchBucket</Code>" in str(error):  # it is made with its first object
                        return
                    raise
            for item in page:
                meta = ObjectMeta(f"s3://{bucket}/{item['path']}", item["size"], item["e_tag"] or "")
                if meta.uri.startswith(prefix):
                    yield meta

    async def get(self, uri: str, *, if_match: str | None = None) -> bytes | None:
        store, key = self._object(uri)
        if if_match == "":
            return None  # no object has that one, and a header without a value would ask for nothing
        with _away():
            try:
                result = await obstore.get_async(store, key, options={} if if_match is None else {"if_match": if_match})
                return bytes(await result.bytes_async())
            except (FileNotFoundError, PreconditionError):
                return None

    async def read(self, uri: str, start: int, length: int, *, if_match: str) -> bytes | None:
        store, key = self._object(uri)
        if if_match == "":
            return None
        with _away():
            try:
                options = {"if_match": if_match, "range": (start, start + length)}
                result = await obstore.get_async(store, key, options=options)  # type: ignore[arg-type]
                return bytes(await result.bytes_async())
            except (FileNotFoundError, PreconditionError):
                return None

    async def put(self, uri: str, body: bytes) -> ObjectMeta:
        store, key = self._object(uri)
        with _away():
            result = await obstore.put_async(store, key, body)
        return ObjectMeta(uri, len(body), result["e_tag"] or "")

    async def copy(self, uri: str, to: str) -> ObjectMeta | None:
        store, key = self._object(uri)
        other_store, other_key = self._object(to)
        if other_store is not store:
            raise ValueError("a copy stays in its bucket")
        with _away():
            try:
                await obstore.copy_async(store, key, other_key)
            except FileNotFoundError:
                return None
        return await self.head(to)

    async def delete(self, uri: str) -> None:
        store, key = self._object(uri)
        with _away():
            try:
                await obstore.delete_async(store, key)
            except FileNotFoundError:
                return

    async def sync(self) -> None:
        if self._sync is not None:
            await self._sync()

    def _object(self, uri: str) -> tuple[S3Store, str]:
        if uri.endswith("/"):
            raise ValueError("not a canonical object address")
        bucket, key = _parsed(uri)
        return self._bucket(bucket), key

    def _bucket(self, name: str) -> S3Store:
        if name not in self._buckets:
            self._buckets[name] = open_bucket(self._access, name, self._patience)
        return self._buckets[name]


def _parsed(uri: str) -> tuple[str, str]:
    parsed = parse_uri(uri)
    if parsed is None:
        raise ValueError("not a canonical address")
    return parsed


@contextmanager
def _away() -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        raise unavailable(error) from error


def was_answered(error: Exception) -> bool:
    """The store refused the call, or failed at it, and said so; the client has repeated what may be repeated."""
    return _STATUS.search(str(error)) is not None


def unavailable(error: Exception) -> StoreUnavailableError:
    """What a person needs to know of it: nothing that a client says is repeated but the status of an answer."""
    status = _STATUS.search(str(error))
    if status is None:
        return StoreUnavailableError("The object store is not available right now.")
    if status[1].startswith("5"):
        return StoreUnavailableError(
            f"The object store fails with status {status[1]}: it may be overloaded, or its disk full; see its log."
        )
    return StoreUnavailableError(f"The object store refuses us with status {status[1]}: see its keys and buckets.")
