"""What nodes and providers say instead of an answer, and which error that is.

There is no standard for it: the same status and the same code stand for a rate limit here, for a batch that is too
large there, and for an unpaid bill elsewhere. Words decide before codes, and codes before the HTTP status; the order of
`error_of` is the order of certainty.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import msgspec

from tracelake.spark.evm.errors import (
    BatchRefusedError,
    LateBlockError,
    LogRangeError,
    NoStateError,
    NoSuchMethodError,
    QuotaExhaustedError,
    RateLimitedError,
    RefusedError,
    RpcError,
    TooLargeError,
    UnavailableError,
)

_MOST_WORDS = 160
_MOST_READ = 2000
"""Of a message. A pattern costs more than its length on longer ones, and nobody writes so much."""
_MOST_JSON = 64 * 1024
_LONGEST_WAIT = 300.0

_QUOTA = re.compile(
    r"month(ly)?\b.{0,40}\b(capacity|limit|quota|credit|exceed|usage)"
    r"|payment required|\bbilling\b|past due|unpaid"
    r"|(out of|insufficient|not enough|no (more|remaining)|ran out of) .{0,20}credit"
    r"|credits?\b.{0,20}\b(exhausted|exceeded|depleted|used up)"
    r"|(subscription|trial|plan|account)\b.{0,20}\b(expired|ended|suspended|deactivated|inactive)"
)
_NO_BATCHES = re.compile(
    r"batch(es|ed|ing)?\b[\w\s-]{0,40}\b(not (supported|allowed|enabled|available|permitted)|disabled|unsupported)"
    r"|not? (support|allow|accept)\w*\b[\w\s-]{0,20}\bbatch"
)
_LARGE_BATCH = re.compile(
    r"batch\b.{0,60}\b(too (large|big|many)|limit|exceed|more than|max)"
    r"|(max\w*|more than|exceed\w*|too many)\b.{0,40}\bbatch"
    r"|number of requests.{0,40}exceed"
)
_LOG_RANGE = re.compile(
    r"\b(block )?ranges?\b|(more than|exceed\w*|max\w*|too many|limit\w*)\b.{0,30}\b(results|logs|blocks)\b"
    r"|log response size|response size|query timeout|query exceeds|(results|logs|blocks)\b.{0,20}\b(limit|exceed|too)"
)
"""In an answer to eth_getLogs: fewer blocks would be answered."""
_BEYOND = re.compile(r"\bbeyond\b|\bhead\b|invalid block range|out of range|future")
_PROPOSAL = re.compile(
    r"range\b[^\d\[]{0,40}\[?\s*(0x[0-9a-f]{1,16}|\d{1,12})\s*(?:,|-|\.\.|to)\s*(0x[0-9a-f]{1,16}|\d{1,12})"
)
_COUNT = re.compile(r"(?<![\w.,])(\d{1,3}(?:,\d{3}){1,2}|\d{1,7})(k?)(?![\w]|[.,]\d)")
_TOO_LARGE = re.compile(r"too (large|big)|response size|size (limit )?exceed|exceeds max|oversized")
_RATE = re.compile(
    r"rate.?limit|limit.{0,20}\brate\b|too many (requests|calls)|requests? (count|limit)|(request|call)s? per second"
    r"|per.second|\brps\b|compute units|throttl|capacity|quota|server is busy|limit (exceeded|reached)"
)
_LATE = re.compile(
    r"header not found|unknown block|future block|unfinalized|not (yet )?(available|found|indexed|synced).{0,40}\byet\b"
    r"|\bnot yet\b|\bblock\b.{0,60}\b(not (yet )?(available|found|exist)|does not exist|unavailable|out of range)"
    r"|\bblock\b.{0,40}\b(greater than|beyond|after|higher than)\b.{0,40}\b(head|latest|last)"
)
_NO_STATE = re.compile(
    r"missing trie node|(historical|required) state\b|\bpruned\b|\barchive\b"
    r"|\bstate\b.{0,60}\b(not available|unavailable|discarded|missing)"
)
"""In an answer to a call that needs the state of a block."""
_CALL_FAILED = re.compile(
    r"execution (reverted|failed|error)|vm execution error|(vm|evm) (error|exception)|revert|out ?of ?gas"
    r"|(invalid|undefined) ?(opcode|jump)|bad ?(instruction|jump)|stack ?(under|over)flow|stack limit|write protection"
    r"|gas uint64 overflow|return data out of bounds|max call depth|transaction (execution )?(reverted|failed)"
)
"""How an answer to eth_call begins that the contract is the reason of. What follows may be the contract's own words."""
_FAILED_CODES = frozenset({3, -32015})
_NO_METHOD = re.compile(
    r"whitelist|not included in your|is disabled|\bblocked\b|method\b.{0,80}\b(disabled|blocked|unavailable)"
    r"|(method|api|call)\b.{0,80}\bnot (be )?(found|supported|available|allowed|enabled|permitted|exist)"
    r"|method\b.{0,80}\bdoes not exist|(unsupported|unknown|no such|invalid) method"
    r"|not (available|supported|allowed|enabled|permitted)\b.{0,60}\b(plan|tier|freetier|subscription)\b"
)
_BANNED = re.compile(
    r"\b(ip|address|country|region|origin|account|user|key|project|domain)\b.{0,40}\b(blocked|whitelist)"
)
_WAIT = re.compile(
    r"\b(?:retry|reset|again|wait|backoff)\w*\b[^.\d]{0,30}?(\d{1,4}(?:\.\d+)?)\s*(ms|s|seconds?|sec|minutes?|m)\b"
)
_NUMBER = re.compile(r"(?<![\w.-])\d{1,6}(?![\w.]*\w)")
_URL = re.compile(r"\b(?:[a-z][a-z0-9+.-]*://|www\.)\S+", re.IGNORECASE)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{24,}")
_TITLE = re.compile(r"<title[^>]*>([^<]{0,200})", re.IGNORECASE)

_RATE_CODES = frozenset({-32005, -32016, -32029, -32090, -32097, -32605, 429})
_NOT_A_CALL_CODES = frozenset({-32700, -32600, -32601, -32602})
_NOT_A_CALL_STATUSES = frozenset({400, 405, 406, 415, 422, 501})


@dataclass(frozen=True, slots=True)
class ProviderRefusal:
    """A reply, or an item of one, without a result."""

    status: int = 200
    code: int | None = None
    words: str = ""
    retry_after: float | None = None
    """Seconds, by the header."""
    method: str = ""
    calls: int = 1
    """Calls in the request."""
    whole: bool = True
    """It is about the request as such, not about one call of a batch."""
    of_logs: bool = False
    """The calls are queries of logs."""
    of_state: bool = False
    """The calls need the state of a block."""


def refusal_in(body: bytes | bytearray) -> tuple[int | None, str]:
    """The code and the words in a body of any form. A web page has its title; what is unknown has none."""
    text = body[:_MOST_JSON]
    if text.lstrip()[:1] == b"<":
        title = _TITLE.search(text.decode("utf-8", "replace"))
        return None, title.group(1) if title else ""
    try:
        content = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None, text[:1024].decode("utf-8", "replace")
    if isinstance(content, list):
        content = next((item for item in content if isinstance(item, dict) and item.get("error")), None)
    if not isinstance(content, dict):
        return None, ""
    error = content.get("error")
    inner = error if isinstance(error, dict) else content
    code = inner.get("code")
    texts = (inner.get(name) for name in ("message", "detail", "reason", "title", "description"))
    words = error if isinstance(error, str) else next((text for text in texts if isinstance(text, str)), "")
    return code if isinstance(code, int) else None, words


def is_failed_call(code: int, words: str) -> bool:
    """Whether a contract, and not the node, is why eth_call has no result. It is asked before `error_of`: a contract
    may revert with words that look like a limit of a provider."""
    return code in _FAILED_CODES or (code not in _RATE_CODES and _CALL_FAILED.match(words.lower()) is not None)


def error_of(refusal: ProviderRefusal, host: str, secrets: Sequence[str] = ()) -> RpcError:
    words, status, code = refusal.words[:_MOST_READ].lower(), refusal.status, refusal.code
    account = _account(refusal, secrets)
    if status == 402 or _QUOTA.search(words):
        return QuotaExhaustedError(f"{account}: check the plan and the payment of this endpoint", host=host)
    if refusal.of_logs and _LOG_RANGE.search(words) and not _BEYOND.search(words):
        limits = tuple(_count(*match) for match in _COUNT.findall(words))
        return LogRangeError(account, host=host, limits=limits, proposed=_proposed(words))
    if refusal.calls > 1:
        if _LARGE_BATCH.search(words):
            return TooLargeError(account, host=host, limit=_limit(words, refusal.calls))
        if _NO_BATCHES.search(words):
            return BatchRefusedError(account, host=host, certain=True)
    if status == 413 or _TOO_LARGE.search(words):
        return TooLargeError(account, host=host)
    if _is_rate_limit(refusal, words):
        return RateLimitedError(account, host=host, retry_after=_wait(refusal, words))
    if refusal.of_state and _NO_STATE.search(words):
        return NoStateError(f"{account}: it does not keep the state of this block; use an archive node", host=host)
    if _LATE.search(words):
        return LateBlockError(account, host=host)
    one_call = refusal.calls == 1 or not refusal.whole
    if one_call and (code == -32601 or _NO_METHOD.search(words)) and not _BANNED.search(words):
        return NoSuchMethodError(account, host=host, certain=code == -32601)
    if status in (401, 403):
        return RefusedError(f"{account}: check the key and the plan of this endpoint", host=host)
    if 300 <= status < 400 or status == 404 or (status == 405 and one_call):
        return RefusedError(f"{account}: this is not the address of a JSON-RPC server", host=host)
    if not one_call and (status in _NOT_A_CALL_STATUSES or (status < 500 and code in _NOT_A_CALL_CODES)):
        return BatchRefusedError(account, host=host)
    if code == -32003:  # geth's for a response that is too large; others use it with words of their own
        return TooLargeError(account, host=host)
    return UnavailableError(account, host=host)


def clean(words: str, secrets: Sequence[str] = ()) -> str:
    """The node's words for an error message: bounded, printable, without addresses and what may be a key.

    Empty if they repeat a part of the node's address that is secret.
    """
    folded = words[: 2 * _MOST_READ].casefold()  # beyond what is quoted, so that no secret is cut in two
    if any(form.casefold() in folded for secret in secrets for form in (secret, unquote(secret))):
        return ""
    plain = " ".join("".join(character if character.isprintable() else " " for character in words[:_MOST_READ]).split())
    plain = _TOKEN.sub("[...]", _URL.sub("[URL]", plain))
    return plain if len(plain) <= _MOST_WORDS else plain[: _MOST_WORDS - 3] + "..."


def _account(refusal: ProviderRefusal, secrets: Sequence[str]) -> str:
    parts = [f"HTTP status {refusal.status}"] if refusal.status != 200 else []
    if refusal.code is not None or not parts:
        parts.append(f"error {refusal.code or 0} to {refusal.method}")
    words = clean(refusal.words, secrets)
    return ", ".join(parts) + (f" ({words})" if words else "")


def _is_rate_limit(refusal: ProviderRefusal, words: str) -> bool:
    if refusal.status == 429 or (refusal.status == 503 and refusal.retry_after is not None):
        return True
    return refusal.code in _RATE_CODES or _RATE.search(words) is not None


def _wait(refusal: ProviderRefusal, words: str) -> float | None:
    """By the header, else by words like "retry in 10s"."""
    if refusal.retry_after is not None:
        return refusal.retry_after
    match = _WAIT.search(words)
    if match is None:
        return None
    unit = match.group(2)
    factor = 0.001 if unit == "ms" else 60.0 if unit.startswith("m") else 1.0
    return min(_LONGEST_WAIT, float(match.group(1)) * factor)


def _count(digits: str, thousands: str) -> int:
    """10,000 or 10k."""
    return int(digits.replace(",", "")) * (1000 if thousands else 1)


def _proposed(words: str) -> int | None:
    """Blocks of the range that the words propose, both ends included."""
    match = _PROPOSAL.search(words)
    if match is None:
        return None
    first, last = (int(text, 16 if text[:2] == "0x" else 10) for text in match.groups())
    return last - first + 1 if first <= last else None


def _limit(words: str, calls: int) -> int | None:
    """The largest batch that the words name, which is less than what was sent."""
    numbers = [int(match) for match in _NUMBER.findall(words)]
    return max((number for number in numbers if 1 <= number < calls), default=None)
