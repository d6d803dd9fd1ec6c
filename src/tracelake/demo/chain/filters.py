"""The filter of eth_getLogs: which blocks, whose logs, and which topics at which places."""

from typing import Any

import msgspec

from tracelake.demo.chain.rpc import INVALID_PARAMS, ChainRpcError
from tracelake.demo.chain.store import StoredLog
from tracelake.demo.chain.values import parse_address, parse_hash, parse_quantity

MAX_CHOICES = 1000
MAX_TOPICS = 4
_NEWEST = frozenset({"latest", "safe", "finalized", "pending"})
_KEYS = frozenset({"fromBlock", "toBlock", "blockHash", "address", "topics"})


class LogFilter(msgspec.Struct, frozen=True, kw_only=True):
    block_hash: str | None = None
    first: int | None = None
    """None for the newest block."""
    last: int | None = None
    addresses: frozenset[str] = frozenset()
    """Any, if empty."""
    topics: tuple[frozenset[str], ...] = ()
    """Any at a place whose set is empty, which must be there all the same."""

    def takes(self, log: StoredLog) -> bool:
        if self.addresses and log.address not in self.addresses:
            return False
        if len(self.topics) > len(log.topics):
            return False
        return all(not choices or topic in choices for choices, topic in zip(self.topics, log.topics, strict=False))


def parse_filter(value: Any) -> LogFilter:
    if not isinstance(value, dict):
        raise ChainRpcError(INVALID_PARAMS, "invalid argument 0: a filter object is wanted")
    unknown = sorted(value.keys() - _KEYS)
    if unknown:
        raise ChainRpcError(INVALID_PARAMS, f"invalid argument 0: a filter has no {unknown[0][:40]}")
    if value.get("blockHash") is not None:
        if value.get("fromBlock") is not None or value.get("toBlock") is not None:
            message = "cannot specify both BlockHash and FromBlock/ToBlock, choose one or the other"
            raise ChainRpcError(INVALID_PARAMS, f"invalid argument 0: {message}")
        block_hash = parse_hash(value["blockHash"], "blockHash")
    else:
        block_hash = None
    return LogFilter(
        block_hash=block_hash,
        first=_number(value.get("fromBlock"), "fromBlock"),
        last=_number(value.get("toBlock"), "toBlock"),
        addresses=_addresses(value.get("address")),
        topics=_topics(value.get("topics")),
    )


def _number(value: Any, what: str) -> int | None:
    if value is None or (isinstance(value, str) and value in _NEWEST):
        return None
    return 0 if value == "earliest" else parse_quantity(value, what)


def _addresses(value: Any) -> frozenset[str]:
    if value is None:
        return frozenset()
    choices = value if isinstance(value, list) else [value]
    _limit(choices, "address")
    return frozenset(parse_address(address, "address") for address in choices)


def _topics(value: Any) -> tuple[frozenset[str], ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_TOPICS:
        raise ChainRpcError(INVALID_PARAMS, f"invalid topics: a list of at most {MAX_TOPICS} places")
    return tuple(_choices(place) for place in value)


def _choices(place: Any) -> frozenset[str]:
    if place is None:
        return frozenset()
    choices = place if isinstance(place, list) else [place]
    _limit(choices, "topics")
    if None in choices:  # "this one or any" is any
        return frozenset()
    return frozenset(parse_hash(topic, "topic") for topic in choices)


def _limit(choices: list[Any], what: str) -> None:
    if len(choices) > MAX_CHOICES:
        raise ChainRpcError(INVALID_PARAMS, f"invalid {what}: at most {MAX_CHOICES} choices")
