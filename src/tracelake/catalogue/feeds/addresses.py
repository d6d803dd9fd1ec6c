"""Addresses of feeds: a strict reading of `http` URLs, and templates in which a task's unit has its place.

An address that two programs could read differently is refused: names of users, fragments, backslashes, white space,
numbers that only look like a host. The same reading is used at deploy, for redirects, and for links to next pages.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

MAX_LENGTH = 4000
MAX_HOST = 253
PLACEHOLDERS = frozenset(
    {
        *("start", "end", "partition_key"),
        *("start_time", "end_time", "start_date", "end_date", "start_millis", "end_millis"),
    }
)
"""What `{...}` may name: the unit's first and last number, and both as times, if they are seconds since 1970."""
DEFAULT_PORTS = {"http": 80, "https": 443}

_URL = re.compile(r"(?P<scheme>https?)://(?P<place>[^/?#]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?", re.ASCII)
_PLACE = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[1-9][0-9]{0,4}))?", re.ASCII)
_TEXT = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*", re.ASCII)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


class AddressError(ValueError):
    """Not an address that is fetched; never repeats the address, which may hold a key."""


@dataclass(frozen=True, slots=True)
class HttpAddress:
    scheme: str
    host: str
    """In lower case, without brackets."""
    port: int
    target: str
    """Path and query, as they are sent."""

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """The value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_address(text: str) -> HttpAddress:
    """Raises AddressError."""
    if len(text) > MAX_LENGTH:
        raise AddressError(f"an address has at most {MAX_LENGTH} characters")
    if not text.isascii() or any(character <= " " or character in "\x7f\\" for character in text):
        raise AddressError("an address is ASCII without spaces; write anything else percent-encoded")
    if "#" in text:
        raise AddressError("an address has no #: what stands behind it is not sent")
    match = _URL.fullmatch(text)
    if match is None:
        raise AddressError("expected an address that begins with http:// or https:// and a host")
    if "@" in match["place"]:
        raise AddressError("an address has no name or password: use `headers` with a secret")
    place = _PLACE.fullmatch(match["place"])
    if place is None:
        raise AddressError("expected a host like api.example.com, or with a port: api.example.com:8443")
    port = DEFAULT_PORTS[match["scheme"]] if place["port"] is None else int(place["port"])
    if port > 65_535:
        raise AddressError("a port is at most 65535")
    path, query = match["path"] or "/", match["query"]
    if not _TEXT.fullmatch(path) or not _TEXT.fullmatch(query or ""):
        raise AddressError("a path or query has characters that must be percent-encoded")
    if any(unquote(segment) in (".", "..") for segment in path.split("/")):
        raise AddressError("a path has a segment . or ..: write the path without it")
    target = path if query is None else f"{path}?{query}"
    return HttpAddress(match["scheme"], parse_host(place["host"]), port, target)


def parse_host(text: str) -> str:
    """A name of the DNS, or an IP address in its usual form; in lower case, without brackets. Raises AddressError."""
    host = text.lower()
    try:
        if host.startswith("["):
            return str(ipaddress.IPv6Address(host[1:-1]))
        labels = host.split(".")
        if _NUMBER.fullmatch(labels[-1]):
            # Resolvers take 127.1, 0x7f.0.0.1 and 2130706433 for addresses; one form is enough.
            return str(ipaddress.IPv4Address(host))
    except ValueError:
        raise AddressError("a host of digits must be an IP address like 192.0.2.1 or [2001:db8::1]") from None
    if len(host) > MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise AddressError("a host is a name like api.example.com; write letters beyond ASCII as xn--...")
    return host


@dataclass(frozen=True, slots=True)
class Template:
    """A text with places for values of the unit."""

    parts: tuple[str, ...]
    """Text and names of placeholders in turn, beginning with text."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.parts[1::2])

    def render(self, values: Mapping[str, str], *, encode: bool = True) -> str:
        """With `encode`, values are percent-encoded whole: none of them can begin a segment or a parameter."""
        return "".join(
            part if number % 2 == 0 else (quote(values[part], safe="") if encode else values[part])
            for number, part in enumerate(self.parts)
        )


def parse_template(text: str) -> Template:
    """Raises AddressError."""
    parts = tuple(_PLACEHOLDER.split(text))
    for name in parts[1::2]:
        if name not in PLACEHOLDERS:
            known_names = ", ".join(f"{{{name}}}" for name in sorted(PLACEHOLDERS))
            raise AddressError(f"there is no placeholder {{{name[:40]}}}; there are {known_names}")
    if any("{" in part or "}" in part for part in parts[::2]):
        raise AddressError("a brace is part of a placeholder like {start}; write any other as %7B or %7D")
    return Template(parts)


def parse_address_template(text: str) -> Template:
    """Placeholders may stand in the path and in the query, never in scheme, host or port. Raises AddressError."""
    template = parse_template(text)
    if template.names and text.count("/", 0, text.index("{")) < 3:
        raise AddressError("a placeholder stands in the path or the query of an address, not in its host")
    parse_address(template.render(dict.fromkeys(PLACEHOLDERS, "0")))
    return template
