"""Which logs a job wants: of these contracts, with these topics. A node filters them, and its answer is checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LogSelection:
    """Hex texts in small letters, as nodes write them."""

    addresses: tuple[str, ...] = ()
    """Any, if empty."""
    topics: tuple[tuple[str, ...], ...] = ()
    """By place, the accepted ones; any at a place without one. A log must have as many topics as there are places."""

    @classmethod
    def of(cls, addresses: Sequence[str], topics: Sequence[Sequence[str]]) -> "LogSelection":
        return cls(
            tuple(sorted({address.lower() for address in addresses})),
            tuple(tuple(sorted({topic.lower() for topic in place})) for place in topics),
        )

    def params(self, first: int, last: int) -> list[dict[str, Any]]:
        """Of eth_getLogs, for these blocks."""
        return self._query({"fromBlock": hex(first), "toBlock": hex(last)})

    def params_of_block(self, block_hash: str) -> list[dict[str, Any]]:
        """Of eth_getLogs, for this very block: a node that does not have it says so."""
        return self._query({"blockHash": block_hash})

    def _query(self, query: dict[str, Any]) -> list[dict[str, Any]]:
        if self.addresses:
            query["address"] = list(self.addresses)
        if self.topics:
            query["topics"] = [list(place) or None for place in self.topics]
        return [query]

    def takes(self, address: str, topics: Sequence[str]) -> bool:
        """Whether a log is one of them."""
        if self.addresses and address.lower() not in self.addresses:
            return False
        if len(self.topics) > len(topics):
            return False
        return all(not place or topic.lower() in place for place, topic in zip(self.topics, topics, strict=False))
