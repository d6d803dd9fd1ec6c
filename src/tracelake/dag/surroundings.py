"""What a document is read against: the parts of its org and its stack that it may name."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracelake.model.dag import Schema
from tracelake.model.runtime import RuntimeRegistry

_KEPT = {
    "buffered": "`write_mode: buffered`",
    "none": "events and no rows",
    "postgres": "`storage: postgres` with `write_mode: direct`",
}


def kept_as(storage: str) -> str:
    """The kind of storage in the words of a document."""
    return _KEPT.get(storage, f"`storage: {storage}`")


@dataclass(frozen=True, slots=True)
class KnownDataset:
    owner_dag: str | None
    """None: no DAG made it."""
    schema: Schema | None
    """None: nobody said what its rows look like."""
    storage: str
    writers: frozenset[str] = frozenset()
    """Other DAGs that its owner lets write it."""
    made_from: frozenset[str] = frozenset()
    """Every dataset that lies before it, through jobs of other DAGs than the one that is read."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    runtimes: RuntimeRegistry
    datasets: Mapping[str, KnownDataset]
    """Every dataset of the org, by name."""
    bundles: Mapping[str, str]
    """The language (`python`, `node`, `rust`) of each bundle that is known."""
    taken_webhook_paths: Mapping[str, str] = field(default_factory=dict)
    """Paths that the document wants and cannot have, with the reason."""
