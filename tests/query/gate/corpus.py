"""The corpora of queries, as files that a person can read.

An entry begins with `--- name | code` and has its SQL below. `{U+200B}` stands for a character that cannot be seen, and
`{word * 100}` for a word that is repeated.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tracelake.query.gate.parameters import QueryParameter

_DIRECTORY = Path(__file__).parent
_CHARACTER = re.compile(r"\{U\+([0-9A-F]{4,6})\}")
_REPETITION = re.compile(r"\{([^{}]*) \* (\d+)\}")
CONTAINED = "contained"
"""The gate lets it through: the sandbox of the engine bounds what it costs."""

RELATIONS: dict[str, dict[str, str]] = {
    "blocks": {
        "block_number": "BIGINT",
        "block_hash": "VARCHAR",
        "author": "VARCHAR",
        "gas_used": "BIGINT",
        "base_fee": "BIGINT",
        "mined_at": "TIMESTAMP",
        "extra": "JSON",
    },
    "transactions": {
        "block_number": "BIGINT",
        "transaction_index": "INTEGER",
        "transaction_hash": "VARCHAR",
        "from_address": "VARCHAR",
        "to_address": "VARCHAR",
        "value": "DECIMAL(38,0)",
        "gas_used": "BIGINT",
        "gas_price": "BIGINT",
        "success": "BOOLEAN",
        "input": "BLOB",
    },
    "logs": {
        "block_number": "BIGINT",
        "transaction_index": "INTEGER",
        "log_index": "INTEGER",
        "address": "VARCHAR",
        "topics": "VARCHAR[]",
        "data": "BLOB",
        "decoded": "JSON",
    },
    "transfers": {
        "block_number": "BIGINT",
        "log_index": "INTEGER",
        "token": "VARCHAR",
        "sender": "VARCHAR",
        "receiver": "VARCHAR",
        "amount": "BIGNUM",
        "kind": "VARCHAR",
        "moved_at": "TIMESTAMP",
        "meta": "STRUCT(fee DOUBLE, route VARCHAR[])",
    },
    "prices": {"token": "VARCHAR", "quoted_at": "TIMESTAMP", "day": "DATE", "usd": "DOUBLE", "symbol": "VARCHAR"},
}
PARAMETERS = {
    "first": QueryParameter("int64", 2),
    "last": QueryParameter("int64", 8),
    "token": QueryParameter("text", "HUSD"),
    "since": QueryParameter("date", "2026-03-02"),
    "least": QueryParameter("uint256", str(10**20)),
    "share": QueryParameter("float64", 0.5),
}


@dataclass(frozen=True, slots=True)
class CorpusEntry:
    group: str
    name: str
    code: str
    sql: str

    def __str__(self) -> str:
        return f"{self.group}-{self.name}".replace(" ", "_")


def read_corpus(folder: str) -> list[CorpusEntry]:
    entries = []
    for path in sorted((_DIRECTORY / folder).glob("*.sql")):
        for part in re.split(r"^--- ", path.read_text(), flags=re.MULTILINE)[1:]:
            head, _, sql = part.partition("\n")
            name, _, code = head.partition(" | ")
            text = _REPETITION.sub(lambda match: match[1] * int(match[2]), sql.strip())
            text = _CHARACTER.sub(lambda match: chr(int(match[1], 16)), text)
            entries.append(CorpusEntry(path.stem, name.strip(), code.strip(), text))
    return entries
