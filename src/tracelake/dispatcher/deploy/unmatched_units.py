"""Warns of joins whose inputs have units of different sizes: a task of a join needs the same unit in all of them.

Sizes that can never be the same are refused with the document (`tracelake.dag.windows`). What is left may match by
chance: a splitter cuts a range that begins or ends within a unit into shorter ones, and units of another DAG are known
only as far as they are there. So the plan warns.
"""

from collections.abc import Mapping, Sequence
from functools import reduce

from tracelake.catalogue import CATALOGUE, RangeAggregatorConfig, RangeSplitterConfig, read_config
from tracelake.dispatcher.deploy.outputs import Generation, StoredDataset
from tracelake.dispatcher.deploy.rebuilds import UnitExtent
from tracelake.model.dag import Dag, Input, JobDocument, ReadMode, SourceKind, Strategy

_Sizes = frozenset[int] | None
"""Blocks of the units that are not cut short; None: not known, or no units of blocks."""
_ANY: frozenset[int] = frozenset()
"""Ranges that somebody triggers, of any size."""
_LISTED = 3


def describe_unmatched_units(
    document: Dag, datasets: Mapping[str, StoredDataset], extents: Mapping[Generation, UnitExtent]
) -> list[str]:
    """One text for each join whose inputs have no size in common."""
    sizes_by_job: dict[str, _Sizes] = {}
    texts = []
    for job in document.jobs:  # upstream first
        driving = [item for item in job.inputs if item.read is ReadMode.UNIT]
        sizes = [_input_sizes(item, sizes_by_job, datasets, extents) for item in driving]
        sizes_by_job[job.name] = _unit_sizes(job, sizes)
        if job.execution_strategy is Strategy.PER_PARTITION:
            sized = [(item, size) for item, size in zip(driving, sizes, strict=True) if size]
            if len(sized) > 1 and not _common([size for _, size in sized]):
                texts.append(_text(job, sized))
    return texts


def _input_sizes(
    item: Input,
    sizes_by_job: Mapping[str, _Sizes],
    datasets: Mapping[str, StoredDataset],
    extents: Mapping[Generation, UnitExtent],
) -> _Sizes:
    if item.output is not None:
        return sizes_by_job.get(item.output.job)
    dataset = datasets.get(item.dataset or "")
    if dataset is None or dataset.storage not in ("s3", "none"):
        return None
    if dataset.units is not None:
        return None if dataset.units.size is None else frozenset({dataset.units.size})
    extent = extents.get((dataset.dataset_uuid, dataset.current_version))
    return None if extent is None or not extent.sizes else extent.sizes


def _unit_sizes(job: JobDocument, inputs: Sequence[_Sizes]) -> _Sizes:
    """The sizes of the units that a job announces, from those of its inputs."""
    if job.units is not None:
        return None if job.units.size is None else frozenset({job.units.size})
    if job.source is not None:
        is_triggered = job.source.kind is SourceKind.MANUAL or (
            job.source.kind is SourceKind.WEBHOOK and job.source.unit == "body"
        )
        return _ANY if is_triggered else None
    operator = CATALOGUE.get(job.operator or "")
    if operator is not None and operator.config_type in (RangeAggregatorConfig, RangeSplitterConfig):
        config = read_config(operator.name, job.config)
        if isinstance(config, RangeAggregatorConfig):
            return frozenset({config.size})
        assert isinstance(config, RangeSplitterConfig)
        return _split(inputs[0], config.size) if len(inputs) == 1 else None
    if job.operator == "udf" or not inputs:
        return None  # users' code announces the units it chooses
    if len(inputs) == 1:
        return inputs[0]
    known_sizes = [sizes for sizes in inputs if sizes]
    if job.execution_strategy is Strategy.PER_PARTITION:
        return _common(known_sizes) or None if known_sizes else inputs[0]
    if job.execution_strategy is Strategy.PER_UPDATE and len(known_sizes) == len(inputs):
        return frozenset().union(*known_sizes)
    return None


def _split(sizes: _Sizes, size: int) -> _Sizes:
    """The pieces of units, if all of them are of one size."""
    if sizes is None or sizes is _ANY:
        return sizes if sizes is None else frozenset({size})
    if any(unit % size and size % unit for unit in sizes):
        return None
    return frozenset(min(unit, size) for unit in sizes)


def _common(sizes: Sequence[frozenset[int]]) -> frozenset[int]:
    return reduce(frozenset.intersection, sizes)


def _text(job: JobDocument, inputs: Sequence[tuple[Input, frozenset[int]]]) -> str:
    units = ", ".join(f"`{_name(item)}` units of {_blocks(sizes)}{_so_far(item)}" for item, sizes in inputs)
    remedy = "Give them one size"
    operator = CATALOGUE.get(job.operator or "")
    if operator is not None and operator.windows != "none":
        largest = max(max(sizes) for _, sizes in inputs)
        remedy += f", or read files with units of the job's own: `units: {{by: blocks, size: {largest}}}`"
    return (
        f"`{job.name}` computes a unit once all its inputs have the same one, and they have different sizes: {units}. "
        "At most the first and the last unit of a range can match; all others are never computed. "
        f"{remedy}."
    )


def _name(item: Input) -> str:
    if item.output is None:
        return item.dataset or ""
    return item.output.job if not item.output.output_index else f"{item.output.job}[{item.output.output_index}]"


def _blocks(sizes: frozenset[int]) -> str:
    ordered = sorted(sizes)
    if len(ordered) > _LISTED:
        return f"{ordered[0]} to {ordered[-1]} blocks"
    text = " and ".join(map(str, ordered))
    return f"{text} block{'' if ordered == [1] else 's'}"


def _so_far(item: Input) -> str:
    return " so far" if item.output is None else ""
