"""A document while it is read: the records of jobs and datasets, valid or not, for checks across several of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracelake.catalogue import OperatorConfig, OperatorSpec, read_config
from tracelake.dag.kinds import DocumentPlace, Record
from tracelake.dag.nodes import ScalarNode
from tracelake.dag.surroundings import Surroundings
from tracelake.dag.where import ReadWhere
from tracelake.errors import TraceError
from tracelake.model.dag import Activation, CheckKind, Column, OutputAddress, ReadMode, Schema, SourceKind


@dataclass(slots=True)
class InputDraft:
    place: DocumentPlace
    output: OutputAddress | None = None
    dataset: str | None = None
    where: ReadWhere | None = None
    record: Record | None = None
    read: ReadMode = ReadMode.UNIT

    @property
    def is_previous(self) -> bool:
        """It is the job's own output."""
        return self.read is ReadMode.PREVIOUS


@dataclass(slots=True)
class JobDraft:
    record: Record
    defaults: Record | None
    inputs: list[InputDraft] = field(default_factory=list)
    """Those that could be resolved."""

    @property
    def raw_name(self) -> str | None:
        """The name as written, even if it is invalid: edges to the job are then not reported as well."""
        place = self.record.places.get("name")
        return place.node.text if place is not None and isinstance(place.node, ScalarNode) else None

    @property
    def activation(self) -> Activation | None:
        value = self.record.get("activation")
        return None if value is None else Activation(value)

    @property
    def source_kind(self) -> SourceKind | None:
        source = self.record.get("source")
        kind = None if source is None else source.get("kind")
        return None if kind is None else SourceKind(kind)

    @property
    def is_source(self) -> bool:
        return self.activation is Activation.SOURCE

    @property
    def only_emits(self) -> bool:
        return self.is_source and self.source_kind not in (None, SourceKind.ALWAYS_ON)

    @property
    def has_windows(self) -> bool:
        """Its units are its own, or it reads more than one unit of an input."""
        return self.record.has("units") or any(item.read is not ReadMode.UNIT for item in self.inputs)

    @property
    def outputs(self) -> int | None:
        """None if the field is invalid."""
        return None if self.record.bad("outputs") else int(self.record.get("outputs", 1))

    def owner_of(self, name: str) -> Record:
        """The record that sets a field: the job's own, or the defaults."""
        if self.record.has(name) or self.defaults is None or not self.defaults.has(name):
            return self.record
        return self.defaults

    def setting(self, name: str) -> Any:
        """None if the field is not set, or invalid."""
        return self.owner_of(name).get(name)

    def is_said(self, name: str) -> bool:
        return self.owner_of(name).has(name)

    def place_of(self, name: str) -> DocumentPlace:
        return self.owner_of(name).at(name)

    def config(self, operator: OperatorSpec) -> OperatorConfig | None:
        """None if it is invalid, which `check_job` reports."""
        if self.record.bad("config"):
            return None
        try:
            return read_config(operator.name, self.record.get("config", {}))
        except TraceError:
            return None


@dataclass(slots=True)
class PublishDraft:
    name: str
    key: DocumentPlace
    record: Record
    writers: list[OutputAddress] = field(default_factory=list)
    """Those that exist, in order."""
    schema: Schema | None = None
    owner: str | None = None
    """The DAG that owns the dataset and grants this one to write it; None: this one owns it."""

    @property
    def buffered(self) -> bool:
        return bool(self.record.get("write_mode") == "buffered")

    @property
    def live(self) -> bool:
        """It is files up to a boundary and a table above it."""
        return bool(self.record.get("storage") == "live") and not self.buffered


@dataclass(slots=True)
class CheckDraft:
    """A check of one output."""

    record: Record
    kind: CheckKind
    output: OutputAddress
    entry: PublishDraft | None
    """What the output is published as."""
    target: InputDraft | None = None
    """Of a relationship: the other dataset."""
    name: str = ""


@dataclass(slots=True)
class Draft:
    record: Record
    surroundings: Surroundings
    jobs: list[JobDraft]
    publish: dict[str, PublishDraft] = field(default_factory=dict)
    publish_names: frozenset[str] = frozenset()
    """Including those of invalid entries."""
    by_name: dict[str, JobDraft] = field(default_factory=dict)
    """The first job of each raw name."""
    knows_all_names: bool = True
    """Every job could be read and has a name."""
    publishers: dict[OutputAddress, PublishDraft] = field(default_factory=dict)
    checks: list[CheckDraft] = field(default_factory=list)
    """Those that could be read; one of a dataset with several writers is here once for each."""
    _columns: dict[int, Mapping[str, Column]] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        name: str | None = self.record.get("name")
        return name

    def columns_of(self, schema: Schema) -> Mapping[str, Column]:
        """By name; cached, since a document may ask for the same columns thousands of times."""
        columns = self._columns.get(id(schema))
        if columns is None:
            columns = self._columns[id(schema)] = {column.name: column for column in schema.columns}
        return columns

    def canonical_address(self, address: OutputAddress) -> OutputAddress:
        """The first writer of a buffered dataset, which stands for all of them; else the address itself."""
        return self.co_writers(address)[0]

    def co_writers(self, address: OutputAddress) -> list[OutputAddress]:
        """All outputs whose rows a reader of this one receives."""
        entry = self.publishers.get(address)
        return entry.writers if entry is not None and entry.buffered else [address]
