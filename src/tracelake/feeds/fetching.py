"""All pages of one `http_fetch`: requests made from the unit, documents mapped to rows, the next page found."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urljoin

import msgspec

from tracelake.catalogue.feeds.addresses import AddressError, HttpAddress, parse_address, parse_template
from tracelake.catalogue.feeds.paths import MISSING, parse_path
from tracelake.catalogue.http_fetch import HttpFetchConfig, Paging, placeholder_of
from tracelake.feeds.documents import BadDocumentError, FeedDocument, JsonNumber, kind_of_json, read_document
from tracelake.feeds.errors import FeedError
from tracelake.feeds.exchange import FeedReply, FeedRequest
from tracelake.feeds.mapping import RowMapper
from tracelake.feeds.retrying import PatientClient
from tracelake.model.hiding import Hiding

_ACCEPT = {"json": "application/json", "jsonl": "application/x-ndjson, application/jsonl, */*", "csv": "text/csv, */*"}
_CHARSET = re.compile(r"charset\s*=\s*\"?([A-Za-z0-9_.:-]+)\"?", re.ASCII | re.IGNORECASE)
_SAME_CHARSET = {
    "utf-8": ("utf-8", "utf8", "us-ascii", "ascii"),
    "utf-16": ("utf-16", "utf-16le", "utf-16be"),
    "iso-8859-1": ("iso-8859-1", "latin1", "us-ascii", "ascii"),
    "windows-1252": ("windows-1252", "cp1252", "iso-8859-1", "us-ascii", "ascii"),
}
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", re.ASCII)
_LINK = re.compile(r"\s*<([^<>]*)>((?:\s*;\s*[a-zA-Z*]+\s*=\s*(?:\"[^\"]*\"|[^\s\",;]*))*)\s*(?:,|$)", re.ASCII)
_NEXT = re.compile(r";\s*rel\s*=\s*(?:\"(?:[^\"]*\s)?next(?:\s[^\"]*)?\"|next(?![^\s,;]))", re.ASCII | re.IGNORECASE)
_LAST_SECOND = 253402300799


class FeedUnit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The unit of the task: a range, a key, or both."""

    start: int | None = None
    end: int | None = None
    partition_key: str | None = None

    def values(self, names: frozenset[str]) -> dict[str, str | int]:
        """What these placeholders stand for. Raises FeedError for one that the unit does not have."""
        return {name: self._value(name) for name in names}

    def _value(self, name: str) -> str | int:
        if name == "partition_key":
            if self.partition_key is None:
                raise FeedError("the request names {partition_key}, and the unit is a cursor: use {end}", final=True)
            return self.partition_key
        word, _, form = name.partition("_")
        number = self.start if word == "start" else self.end
        if number is None:
            raise FeedError(
                f"the request names {{{name}}}, and the unit is not a range: use {{partition_key}}", final=True
            )
        if not form:
            return number
        if not 0 <= number <= _LAST_SECOND:
            raise FeedError(f"the request names {{{name}}}, and {number} is no time in seconds since 1970", final=True)
        if form == "millis":
            return number * 1000
        moment = datetime.fromtimestamp(number, UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if form == "time" else f"{moment:%Y-%m-%d}"

    def specials(self) -> dict[str, str]:
        numbers = {"start": self.start, "end": self.end}
        values: dict[str, str] = {name: JsonNumber(number) for name, number in numbers.items() if number is not None}
        return values if self.partition_key is None else {**values, "partition_key": self.partition_key}


def first_request(config: HttpFetchConfig, unit: FeedUnit, secrets: Mapping[str, str]) -> FeedRequest:
    """Raises FeedError."""
    values = unit.values(config.placeholders())
    texts = {name: str(value) for name, value in values.items()}
    parameters = [(name, _parameter(value, texts, secrets)) for name, value in config.query.items()]
    try:
        address = parse_address(parse_template(config.url).render(texts))
    except AddressError as error:
        raise FeedError(f"the address of this unit cannot be called: {error}", final=True) from None
    headers = {name: _header(name, value, secrets) for name, value in config.headers.items()}
    body = None
    if config.method == "POST":
        body = msgspec.json.encode({} if config.body is None else _fill(config.body, values))
    return FeedRequest(_with_query(address, parameters), config.method, headers, _ACCEPT[config.format], body)


def _parameter(value: Any, texts: Mapping[str, str], secrets: Mapping[str, str]) -> str:
    if isinstance(value, Mapping):
        return secrets[value["secret"]]
    return parse_template(value).render(texts, encode=False) if isinstance(value, str) else str(value)


def _header(name: str, value: Any, secrets: Mapping[str, str]) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    text: str = value.get("prefix", "") + secrets[value["secret"]]
    if not _HEADER_VALUE.fullmatch(text):
        raise FeedError(f"the secret {value['secret']} has characters that the header {name} cannot have", final=True)
    return text


def _fill(value: Any, values: Mapping[str, str | int]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(part, values) for key, part in value.items()}
    if isinstance(value, list):
        return [_fill(part, values) for part in value]
    name = placeholder_of(value)
    return value if name is None else values[name]


def _with_query(address: HttpAddress, parameters: list[tuple[str, str]]) -> HttpAddress:
    """Parameters take the place of those that have their name already."""
    if not parameters:
        return address
    path, _, query = address.target.partition("?")
    names = {name for name, _ in parameters}
    others = [part for part in query.split("&") if part and not names & {name for name, _ in parse_qsl(part, True)}]
    return replace(address, target=f"{path}?{'&'.join([*others, urlencode(parameters, quote_via=quote, safe='')])}")


@dataclass(eq=False)
class FeedFetch:
    config: HttpFetchConfig
    unit: FeedUnit
    secrets: Mapping[str, str]
    client: PatientClient
    mapper: RowMapper
    progress: Callable[[str], None]

    def run(self) -> None:
        """Raises FeedError."""
        hiding = Hiding(self.secrets.values())
        first = request = first_request(self.config, self.unit, self.secrets)
        paging = self.config.paging
        if paging is not None and paging.kind == "page":
            request = self._moved(first, [(paging.parameter, str(paging.first))])
        earlier_pages: set[str] = set()
        for page in range(1, self.config.max_pages + 1):
            reply = self.client.fetch(request)
            if hiding.finds(reply.body.decode("latin-1")):
                raise FeedError(
                    f"{first.address.host} repeats a secret in its answer; nothing of it is kept", final=True
                )
            document, records = self._map(reply, page)
            if paging is None:
                return
            following = self._next(paging, first, reply, document, page, records)
            if following is None:
                return
            key = str(following.address)
            if key in earlier_pages:
                raise FeedError(f"page {page} names itself, or an earlier page, as the next one", final=True)
            earlier_pages.add(key)
            request = following
            self.progress(f"page {page}: {self.mapper.rows} rows")
        limit = self.config.max_pages
        raise FeedError(
            f"more than {limit:,} pages: ask for less, or raise `max_pages`; nothing was written", final=True
        )

    def _map(self, reply: FeedReply, page: int) -> tuple[FeedDocument | None, int]:
        if reply.status == 204:
            return None, 0
        origin = f"page {page}"
        try:
            _check_content(reply, self.config)
            document = read_document(reply.body, self.config)
            specials = {**self.unit.specials(), "page": JsonNumber(page)}
            return document, self.mapper.add(document, origin, specials)
        except BadDocumentError as error:
            # A page of an error that comes with 200 may be gone in the next attempt.
            raise FeedError(f"{origin} of the answer cannot be read: {error}") from None

    def _next(
        self,
        paging: Paging,
        first: FeedRequest,
        reply: FeedReply,
        document: FeedDocument | None,
        page: int,
        records: int,
    ) -> FeedRequest | None:
        if paging.kind == "page":
            if not records:
                return None
            return self._moved(first, [(paging.parameter, str(paging.first + page * paging.step))])
        if paging.kind == "link" and not paging.path:
            link = next_link(reply.link)
        else:
            link = None if document is None else _text_at(paging, document.value)
        if link is None:
            return None
        if paging.kind == "cursor":
            return self._moved(first, [(paging.parameter, link)])
        base = first.address if reply.address is None else reply.address
        try:
            address = parse_address(urljoin(str(base), link))
        except (AddressError, ValueError) as error:
            reason = error if isinstance(error, AddressError) else "not an address"
            raise FeedError(f"the link to the page after {page} cannot be called: {reason}", final=True) from None
        if address.origin != first.address.origin:
            raise FeedError(f"page {page} links to another host: its next page is not fetched", final=True)
        secret = [
            (name, self.secrets[value["secret"]])
            for name, value in self.config.query.items()
            if isinstance(value, Mapping)
        ]
        return replace(first, address=_with_query(address, secret))

    def _moved(self, first: FeedRequest, parameters: list[tuple[str, str]]) -> FeedRequest:
        return replace(first, address=_with_query(first.address, parameters))


def _text_at(paging: Paging, value: Any) -> str | None:
    """Where a document says that there is no next page it says nothing, null, false or an empty text."""
    link = parse_path(paging.path).find(value)
    if link is MISSING or link is None or link is False or link == "":
        return None
    if not isinstance(link, str):
        message = f"expected text at `paging.path: {paging.path}`, received {kind_of_json(link)}"
        raise FeedError(message, final=True)
    return str(link)


def next_link(header: str | None) -> str | None:
    """The address of `rel="next"` in a header Link; None without one."""
    place = 0
    while header and place < len(header) and (match := _LINK.match(header, place)):
        if _NEXT.search(match[2]):
            return match[1]
        place = match.end()
    return None


def _check_content(reply: FeedReply, config: HttpFetchConfig) -> None:
    kind = reply.content_type.partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml"):
        raise BadDocumentError(f"expected {config.format}, received {kind}")
    charset = _CHARSET.search(reply.content_type)
    if charset is not None and charset[1].lower() not in _SAME_CHARSET[config.encoding]:
        raise BadDocumentError(f"it says that it is {charset[1][:40]}, and the config says {config.encoding}")
