"""What a job's data depends on, as one hash: its own definition and, through its inputs, everything before it.

Two versions whose job has the same `data_hash` write the same rows for the same events, so they share a node with its
generations, edges and tasks. Limits are left out on purpose: how often or how long something runs changes no row.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias
from uuid import UUID

from tracelake.catalogue import CATALOGUE
from tracelake.catalogue.direct_schemas import has_position
from tracelake.dispatcher.job_definitions import digest
from tracelake.model.dag import Dag, Input, JobDocument, Publish, ReadMode, Schema

Address: TypeAlias = tuple[str, int]
"""Job name and output_index."""

DATA_FIELDS = (
    "activation",
    "runtime",
    "operator",
    "outputs",
    "inputs",
    "execution_strategy",
    "update_strategy",
    "unique_key",
    "config",
    "udf",
    "secrets",
)
"""Fields of a job that change what it writes. The others are limits."""


def publications(dag: Dag) -> dict[Address, Publish]:
    """Returns what each published output is published as."""
    return {(source.job, source.output_index): publish for publish in dag.publish for source in publish.sources}


def storage_of(dag: Dag, publish: Publish) -> str:
    """How a published dataset is kept. What sources only emit are events, and no rows."""
    if all(dag.job(source.job).only_emits for source in publish.sources):
        return "none"
    return "buffered" if publish.write_mode == "buffered" else publish.storage


def is_direct_table(publish: Publish) -> bool:
    """Whether tasks write the dataset's table themselves. Without a position for its rows there is none."""
    is_direct = publish.storage in ("postgres", "live") and publish.write_mode == "direct"
    return is_direct and publish.schema is not None and has_position(publish.schema)


def written(publish: Publish) -> list[Any]:
    """What a job's rows depend on of how they are published. A table follows its schema while its writers go on."""
    follows = publish.write_mode == "buffered" or is_direct_table(publish)
    return [publish.name, publish.storage, publish.write_mode, None if follows else publish.schema]


def _read(schema: Schema | None) -> list[Any]:
    """What readers of a table see of its schema: columns, and what they are in a query."""
    columns = () if schema is None else schema.columns
    return [
        # Of columns without nested values the hash is what it was before there were others.
        [column.name, column.type, column.precision, column.scale, *([column.nested] if column.nested else [])]
        for column in columns
    ]


def schema_hash(schema: Schema | None) -> str | None:
    return None if schema is None else digest(schema)


def data_hashes(dag: Dag, datasets: Mapping[str, UUID], dag_version_id: UUID) -> dict[str, str]:
    """The data_hash of every job. `datasets` knows the dataset_uuid of what other DAGs publish."""
    return _Hashing(dag, datasets, dag_version_id).all()


class _Hashing:
    """A walk over the DAG from its outputs to its sources; each job is hashed once."""

    def __init__(self, dag: Dag, datasets: Mapping[str, UUID], dag_version_id: UUID) -> None:
        self._dag = dag
        self._jobs = {job.name: job for job in dag.jobs}
        self._published = publications(dag)
        self._datasets = datasets
        self._dag_version_id = dag_version_id
        self._done: dict[str, str] = {}

    def all(self) -> dict[str, str]:
        # From the sources on, not by recursion: a chain may be longer than Python's stack.
        waiting = list(reversed(self._dag.jobs))
        while waiting:
            job = waiting[-1]
            missing = [self._jobs[name] for name in _upstream(job) if name not in self._done]
            if missing:
                waiting.extend(missing)
                continue
            waiting.pop()
            if job.name not in self._done:
                self._done[job.name] = self._hash(job)
        return {job.name: self._done[job.name] for job in self._dag.jobs}

    def _hash(self, job: JobDocument) -> str:
        if job.only_emits:
            # What comes from outside is a fact, whatever the schedule says now. It cannot be made again.
            shared = [
                [index, publish.name]
                for index in range(job.outputs)
                if (publish := self._published.get((job.name, index))) and publish.write_mode == "buffered"
            ]
            # Numbers of deliveries and units that bodies name are two streams: one must not pass the other by.
            by_delivery = job.source is not None and job.source.unit == "delivery"
            parts_of_source: list[Any] = [*([shared] if shared else []), *(["by delivery"] if by_delivery else [])]
            return digest("emits", job.name, job.outputs, *parts_of_source)
        own = {field: getattr(job, field) for field in DATA_FIELDS if field != "inputs"}
        own["secrets"] = sorted(job.secrets)
        own["udf"] = None if job.udf is None else job.udf.code
        if job.units is not None:
            own["units"] = job.units
        if self._writes_live(job):
            own["config"] = _without_tuning(job)
        inputs = [[self._input(item), item.where, *_reading(item)] for item in job.inputs]
        outputs = [self._output((job.name, index)) for index in range(job.outputs)]
        parts: list[Any] = ["makes", job.name, own, inputs, outputs]
        if job.reset_outputs:
            parts.append(self._dag_version_id)
        return digest(*parts)

    def _writes_live(self, job: JobDocument) -> bool:
        """Whether it writes a live dataset, whose rows are made once: of a chain, in days."""
        published = (self._published.get((job.name, index)) for index in range(job.outputs))
        return any(publish is not None and publish.storage == "live" for publish in published)

    def _output(self, address: Address) -> list[Any] | None:
        publish = self._published.get(address)
        return None if publish is None else written(publish)

    def _input(self, item: Input) -> list[Any]:
        """Names the generation that the input reads."""
        if item.read is ReadMode.PREVIOUS:
            assert item.output is not None
            return ["previous", item.output.output_index]
        if item.output is None:
            assert item.dataset is not None
            return ["dataset", self._datasets[item.dataset]]
        address = (item.output.job, item.output.output_index)
        publish = self._published.get(address)
        if publish is not None and publish.is_shared:
            # Its rows come from whoever writes; who that is does not make it another dataset.
            kind = "buffered" if publish.write_mode == "buffered" else publish.storage
            return [kind, publish.name, _read(publish.schema)]
        return ["output", self._done[item.output.job], item.output.output_index]


def _without_tuning(job: JobDocument) -> dict[str, Any]:
    operator = CATALOGUE.get(job.operator or "")
    tuning = frozenset() if operator is None else operator.config_type.tuning
    return {name: value for name, value in job.config.items() if name not in tuning}


def _reading(item: Input) -> list[Any]:
    """How much of the generation the input is; nothing for just the unit of the task."""
    plain = Input(output=item.output, dataset=item.dataset, where=item.where)
    return [] if item == plain else [item.read, item.lookback, item.by, item.columns]


def _upstream(job: JobDocument) -> list[str]:
    return [item.output.job for item in job.inputs if item.output is not None and item.read is not ReadMode.PREVIOUS]
