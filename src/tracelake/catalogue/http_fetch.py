"""The config of `http_fetch`: what is asked for, and how the answer becomes rows."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from tracelake.catalogue.feeds.addresses import PLACEHOLDERS, AddressError, parse_address_template, parse_template
from tracelake.catalogue.feeds.mapping import FeedConfig
from tracelake.catalogue.feeds.paths import PathError, parse_path
from tracelake.catalogue.spec import WORKERS, ConfigFieldError, OperatorSpec
from tracelake.model.dag import SECRET_NAME

MAX_BODY = 64 * 1024
MAX_DEPTH = 32
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,998}[\x21-\x7e])?", re.ASCII)
_PARAMETER = re.compile(r"[A-Za-z0-9._~\[\]-]{1,200}", re.ASCII)
_OWN_HEADERS = frozenset(
    {
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade"),
        *("expect", "accept-encoding", "content-type", "proxy-authorization", "proxy-connection", "range", "if-range"),
    }
)
"""Headers that the operator sets, or that would change what an answer means."""
_CREDENTIALS = frozenset({"authorization", "cookie"})

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class Paging(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the next page is found. Pages end by themselves, or the task fails at `max_pages`."""

    kind: Literal["link", "cursor", "page"]
    path: str = ""
    """Where the document has the address of the next page (`link`; without it, the header `Link` has) or the cursor."""
    parameter: str = ""
    """Of `cursor` and `page`: the parameter of the query that carries it."""
    first: Annotated[int, Meta(ge=0, le=2**31)] = 1
    step: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Of `page`: added for each page; the size of a page where the parameter is an offset."""


class HttpFetchConfig(FeedConfig, frozen=True, kw_only=True):
    specials: ClassVar[frozenset[str]] = frozenset({"row", "key", "record", "page", "start", "end", "partition_key"})

    url: Annotated[str, Meta(min_length=1, max_length=4000)]
    method: Literal["GET", "POST"] = "GET"
    query: dict[str, Any] = {}
    """Parameters: text or numbers, with placeholders, or {secret: NAME}."""
    headers: dict[str, Any] = {}
    """Text, or {secret: NAME, prefix: "Bearer "}."""
    body: Any = None
    """Of POST: JSON, in which a text that is a placeholder, and nothing else, becomes its value."""
    paging: Paging | None = None
    max_bytes: Annotated[int, Meta(ge=1, le=64 * 2**20)] = 16 * 2**20
    """Of one answer, also when unpacked."""
    max_pages: Annotated[int, Meta(ge=1, le=10_000)] = 100
    max_redirects: Annotated[int, Meta(ge=0, le=10)] = 3
    request_seconds: Seconds = 60.0
    """For one answer, from the search for its host to its last byte."""
    retry_seconds: Seconds = 120.0
    """How long one page is tried again before the attempt fails."""
    total_seconds: Seconds = 900.0
    """For all pages."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            parse_address_template(self.url)
        except AddressError as error:
            raise ConfigFieldError("url", str(error)) from None
        for name, value in self.query.items():
            _check_parameter(name, value)
        self._check_headers()
        self._check_body()
        self._check_paging()

    def _check_headers(self) -> None:
        folded = [name.lower() for name in self.headers]
        for name, value in self.headers.items():
            field = f"headers.{name}"
            if not _HEADER.fullmatch(name):
                raise ConfigFieldError("headers", "the name of a header is letters, digits and - without spaces")
            if folded.count(name.lower()) > 1:
                raise ConfigFieldError(field, "the header is there twice; case does not matter")
            if name.lower() in _OWN_HEADERS:
                raise ConfigFieldError(field, "the operator sets this header itself", "Leave it out.")
            if isinstance(value, Mapping):
                _check_secret(field, value, ("secret", "prefix"))
                prefix = value.get("prefix", "")
                if not isinstance(prefix, str) or not re.fullmatch(r"[\x20-\x7e]{0,100}", prefix):
                    raise ConfigFieldError(f"{field}.prefix", "it must be text of visible ASCII characters")
            elif name.lower() in _CREDENTIALS:
                raise ConfigFieldError(
                    field, "a credential is a secret, not text in a DAG", "Write {secret: NAME, prefix: 'Bearer '}."
                )
            elif not isinstance(value, str) or not _VALUE.fullmatch(value):
                raise ConfigFieldError(field, "it must be text of visible ASCII characters, or {secret: NAME}")

    def _check_body(self) -> None:
        if self.body is None:
            return
        if self.method != "POST":
            raise ConfigFieldError("body", "only `method: POST` has a body")
        if not isinstance(self.body, dict | list):
            raise ConfigFieldError("body", "it must be a map or a list, which is sent as JSON")
        if _depth(self.body) > MAX_DEPTH or len(msgspec.json.encode(self.body)) > MAX_BODY:
            raise ConfigFieldError("body", f"it has at most {MAX_BODY:,} bytes and {MAX_DEPTH} levels")

    def _check_paging(self) -> None:
        paging = self.paging
        if paging is None:
            return
        needs_path, needs_parameter = paging.kind == "cursor", paging.kind != "link"
        if paging.path and paging.kind == "page":
            raise ConfigFieldError("paging.path", "`kind: page` counts by itself")
        if needs_path and not paging.path:
            raise ConfigFieldError("paging", "`kind: cursor` needs `path`, where a document has the cursor")
        if needs_parameter != bool(paging.parameter):
            text = "needs `parameter`" if needs_parameter else "has no `parameter`"
            raise ConfigFieldError("paging", f"`kind: {paging.kind}` {text}")
        if paging.parameter and (not _PARAMETER.fullmatch(paging.parameter) or paging.parameter in self.query):
            raise ConfigFieldError("paging.parameter", "it must be the name of a parameter that `query` does not have")
        if paging.path:
            if self.format != "json":
                raise ConfigFieldError("paging.path", "only `format: json` has paths")
            try:
                if parse_path(paging.path).special:
                    raise PathError("it must be a path in the document, like meta.next")
            except PathError as error:
                raise ConfigFieldError("paging.path", str(error)) from None

    def secret_names(self) -> dict[str, str]:
        places: dict[str, str] = {}
        for field, values in (("headers", self.headers), ("query", self.query)):
            for name, value in values.items():
                if isinstance(value, Mapping):
                    places.setdefault(value["secret"], f"{field}.{name}.secret")
        return places

    def placeholders(self) -> frozenset[str]:
        """All that the request names."""
        names = parse_template(self.url).names
        for value in self.query.values():
            if isinstance(value, str):
                names |= parse_template(value).names
        return names | _body_placeholders(self.body)

    def check_inputs(self, names: Sequence[str | None]) -> None:
        if not names:
            raise ConfigFieldError(
                "url", "a fetch is made for the unit of an input", "Make it reactive to a cron source, or to a job."
            )


def placeholder_of(value: object) -> str | None:
    """The name of the placeholder that a text in a body is, all of it."""
    if isinstance(value, str) and value.startswith("{") and value.endswith("}") and value[1:-1] in PLACEHOLDERS:
        return value[1:-1]
    return None


def _body_placeholders(value: Any) -> frozenset[str]:
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return frozenset().union(*(_body_placeholders(part) for part in parts))
    name = placeholder_of(value)
    return frozenset() if name is None else frozenset({name})


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        depth += 1
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [part for item in containers for part in (item.values() if isinstance(item, dict) else item)]
    return depth


def _check_parameter(name: str, value: Any) -> None:
    field = f"query.{name}"
    if not _PARAMETER.fullmatch(name):
        raise ConfigFieldError("query", "the name of a parameter is letters, digits and ._~[]-")
    if isinstance(value, Mapping):
        _check_secret(field, value, ("secret",))
    elif isinstance(value, str):
        try:
            parse_template(value)
        except AddressError as error:
            raise ConfigFieldError(field, str(error)) from None
    elif isinstance(value, bool) or not isinstance(value, int):
        raise ConfigFieldError(field, "it must be text, a whole number, or {secret: NAME}")


def _check_secret(field: str, value: Mapping[str, Any], fields: Sequence[str]) -> None:
    unknown = [str(key) for key in value if key not in fields]
    if unknown:
        raise ConfigFieldError(field, f"there is no field `{unknown[0][:80]}`; there are {', '.join(fields)}")
    name = value.get("secret")
    if not isinstance(name, str) or not re.fullmatch(SECRET_NAME, name):
        raise ConfigFieldError(field, "it must be text, or {secret: NAME} with the name of one of the job's `secrets`")


SPEC = OperatorSpec(
    "http_fetch",
    HttpFetchConfig,
    "Fetches JSON or CSV over HTTP and writes its records as rows.",
    runtimes=WORKERS,
    output_storage="s3",
    checks="unit",
)
