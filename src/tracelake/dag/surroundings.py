"""The context of a document: the parts of its org and its stack that it may name."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracelake.model.columns import DatasetColumns
from tracelake.model.dag import Schema, UnitGrid
from tracelake.model.runtime import RuntimeRegistry

_KEPT = {
    "buffered": "`write_mode: buffered`",
    "none": "events and no rows",
    "postgres": "`storage: postgres` with `write_mode: direct`",
}


def kept_as(storage: str) -> str:
    """The storage as a document would declare it."""
    return _KEPT.get(storage, f"`storage: {storage}`")


@dataclass(frozen=True, slots=True)
class KnownDataset:
    owner_dag: str | None
    """None: no DAG owns it."""
    schema: Schema | None
    """None: no schema is declared."""
    storage: str
    writers: frozenset[str] = frozenset()
    """Other DAGs that its owner grants to write it."""
    made_from: frozenset[str] = frozenset()
    """Every upstream dataset, through jobs of DAGs other than the one that is read."""
    columns: DatasetColumns | None = None
    """What its current generation was deployed with; None: nothing was recorded."""
    units: UnitGrid | None = None
    """The grid that its units are on, if a job chose one."""
    is_removed: bool = False
    """Its DAG was removed: nobody reads it, and its name is taken until it is purged."""


@dataclass(frozen=True, slots=True)
class KnownBundle:
    language: str
    """`python`, `node` or `rust`."""
    entrypoint: str | None = None
    """What its archive was inspected for. None: of Rust, which has one `bootstrap`."""
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Surroundings:
    runtimes: RuntimeRegistry
    datasets: Mapping[str, KnownDataset]
    """All datasets of the org, by name."""
    bundles: Mapping[str, KnownBundle]
    """The finalized bundles of the org, by id."""
    taken_webhook_paths: Mapping[str, str] = field(default_factory=dict)
    """Webhook paths of the document that are taken, with the reason."""
    udf_max_memory_mb: int = 1024
