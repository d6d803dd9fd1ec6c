"""Checks the units that a job chooses, and how much of each input its tasks read."""

import re
from itertools import combinations
from typing import Literal, NamedTuple

from tracelake.catalogue import CATALOGUE, RangeAggregatorConfig, RangeSplitterConfig, document_operators
from tracelake.dag.draft import Draft, InputDraft, JobDraft
from tracelake.dag.kinds import DocumentPlace, Record
from tracelake.dag.problems import shown
from tracelake.model.dag import Activation, Input, OutputAddress, ReadMode, Strategy, UnitGrid
from tracelake.model.time_zones import time_zone_names

_UTC = UnitGrid(by="blocks").time_zone
_COLUMN_TYPE = re.compile(
    r"boolean|byte|short|int|integer|bigint|long|float|double|string|binary|date|timestamp"
    r"|decimal\((?:[1-9]|[12][0-9]|3[0-8]),(?:[0-9]|[12][0-9]|3[0-8])\)"
)
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_RANGED = frozenset((ReadMode.WINDOW, ReadMode.HISTORY))


def check_windows(draft: Draft, job: JobDraft) -> None:
    units: Record | None = job.record.get("units")
    if units is not None:
        _check_grid(units)
    for item in job.inputs:
        _check_input(draft, job, item)
    if job.has_windows and not job.record.bad("units"):
        _check_job(job)
    elif not job.is_source:
        _check_same_units(draft, job)


def build_units(record: Record | None) -> UnitGrid | None:
    if record is None:
        return None
    zone: str = record.get("time_zone", _UTC)
    return UnitGrid(
        by=record.values["by"],
        size=record.get("size"),
        grain=record.get("grain"),
        time_zone=_UTC if zone == _UTC else zone,  # encoders that leave out defaults compare by identity
        when=record.get("when", "complete"),
    )


def build_input(item: InputDraft) -> Input:
    record = item.record
    assert record is not None
    return Input(
        output=item.output,
        dataset=item.dataset,
        where=item.where.values if item.where else None,
        read=item.read,
        lookback=record.get("lookback", 0),
        by=record.get("by"),
        columns=record.get("columns") if item.is_previous else None,
    )


def _check_grid(units: Record) -> None:
    by: Literal["blocks", "time"] | None = units.get("by")
    if by is None:
        return
    required, refused = ("size", ("grain", "time_zone")) if by == "blocks" else ("grain", ("size",))
    if not units.has(required):
        example = "`size: 5000`" if by == "blocks" else "`grain: day`"
        units.missing(required, f"Units by {by} need it, like {example}.")
    for name in refused:
        if units.has(name):
            units.at(name).problem("units_field", f"Units by {by} have no `{name}`.", "Remove it.")
    zone = units.get("time_zone")
    if by == "time" and zone is not None:
        if zone not in time_zone_names():
            place = units.at("time_zone")
            hint = place.problems.did_you_mean(zone, sorted(time_zone_names()))
            hint = hint or "Use a name of the IANA database: `Europe/Berlin`."
            place.problem("unknown_time_zone", f"There is no time zone {shown(zone)}.", hint)
        elif units.get("grain") == "hour" and zone != _UTC:
            message = (
                "Units of an hour are the hours of UTC. Where a zone is whole hours away from UTC, they are hours of"
                " its clock, too; elsewhere, as in Asia/Kolkata, hours of the clock are not supported."
            )
            units.at("time_zone").problem("units_field", message, "Remove it, or use a day, a week or a month.")


def _check_job(job: JobDraft) -> None:
    record = job.record
    place = record.at("units") if record.has("units") else record.at("inputs")
    if job.activation is Activation.SOURCE:
        place.problem("units_of_source", "A source announces its units as they come.", "Use it in a reactive job.")
        return
    operator = record.get("operator")
    spec = document_operators().get(operator)
    if spec is not None and spec.windows == "blocks":
        _check_block_windows(job, place, spec.name)
    elif spec is not None and spec.windows == "none":
        message = f"`{operator}` reads one unit at a time."
        place.problem("window_operator", message, "Use `operator: spark_sql`, or leave `units` and `read` out.")
    if record.has("execution_strategy"):
        message = "A job with windows has a task per unit that its inputs cover."
        record.at("execution_strategy").problem("window_strategy", message, "Leave it out.")
    if len(job.inputs) < len(record.get("inputs") or ()):
        return  # some are invalid, and may be what is looked for
    if not record.has("units") and not any(item.read is ReadMode.UNIT for item in job.inputs):
        hint = "Add `units`, or an input with `read: unit`."
        place.problem("window_without_units", "Nothing says which units the job has.", hint)
    if not any(item.read in (ReadMode.UNIT, ReadMode.WINDOW, ReadMode.HISTORY) for item in job.inputs):
        hint = "Read one of them by `window` or `history`."
        place.problem("window_without_units", "No input says which units there are to compute.", hint)


def _check_block_windows(job: JobDraft, place: DocumentPlace, operator: str) -> None:
    units: Record | None = job.record.get("units")
    if units is None or units.get("by") == "time":
        message = f"`{operator}` works on blocks, in units of blocks."
        place.problem("window_operator", message, "Use `units: {by: blocks, size: 100}`.")
    for item in job.inputs:
        if item.read is not ReadMode.WINDOW or (item.record is not None and item.record.get("lookback")):
            message = f"`{operator}` reads the blocks of its unit."
            item.place.problem("window_operator", message, "Leave `read` and `lookback` out.")


def _check_input(draft: Draft, job: JobDraft, item: InputDraft) -> None:
    record = item.record
    if record is None:
        return
    if item.is_previous:
        _check_previous(draft, item, record)
        return
    for name in ("output_index", "columns"):
        if record.has(name):
            record.at(name).problem("input_field", f"`{name}` belongs to `self: previous`.", "Remove it.")
    if job.record.has("units") and item.read is ReadMode.UNIT:
        hint = "Use `read: window`, which is what it reads if nothing is said."
        record.at("read").problem("read_unit", "A job with `units` has other units than its inputs.", hint)
    if record.get("lookback") and (item.read is not ReadMode.WINDOW or not job.record.has("units")):
        message = "`lookback` counts grains of the job's `units`, and belongs to `read: window`."
        record.at("lookback").problem("input_field", message, "Remove it, or add `units`.")
    if record.has("by") and item.read not in _RANGED:
        record.at("by").problem("input_field", "`by` belongs to `read: window` and `read: history`.", "Remove it.")
    if item.read is ReadMode.UNIT:
        return
    storage = _storage(draft, item)
    if storage == "buffered" and item.read is not ReadMode.ALL:
        message = "A table has no units: it is read as it is when the task runs."
        record.at("read").problem("read_storage", message, "Use `read: all`.")
    elif storage == "none":
        message = "This dataset is events without rows."
        record.at("read").problem("read_storage", message, "Read a dataset that is kept in files.")


def _check_previous(draft: Draft, item: InputDraft, record: Record) -> None:
    for name in ("read", "lookback", "by", "from"):
        if record.has(name):
            record.at(name).problem("input_field", f"`self: previous` has no `{name}`.", "Remove it.")
    assert item.output is not None
    entry = draft.publishers.get(item.output)
    if entry is not None and entry.record.get("storage") not in (None, "s3"):
        message = "Only an output that is kept in files can be read as the unit before."
        record.at("self").problem("read_storage", message, "Publish it with `storage: s3`.")
    columns = record.get("columns")
    if columns is None:
        if not record.bad("columns"):
            hint = 'Like `columns: {holder: binary, balance: "decimal(38,0)"}`.'
            record.missing("columns", f"The first unit has none before it, and reads these without rows. {hint}")
        return
    place = record.at("columns")
    for name, kind in columns.items():
        if not _COLUMN_NAME.fullmatch(name):
            place.problem("name_invalid", f"{shown(name)} is not the name of a column.")
        elif not isinstance(kind, str) or not _COLUMN_TYPE.fullmatch(kind):
            hint = "Use boolean, int, bigint, double, string, binary, date, timestamp or decimal(p,s)."
            place.entries()[name][1].problem("invalid_value", f"{shown(str(kind))} is not a type of Spark.", hint)


class _InputUnits(NamedTuple):
    """What is known of the units of an input before anything runs."""

    by: Literal["blocks", "time"] = "blocks"
    grain: str | None = None
    time_zone: str = _UTC
    least: int = 1
    """Blocks of its smallest units."""
    most: int | None = None
    """Blocks of its largest units; None: unknown."""

    def can_equal(self, other: "_InputUnits") -> bool:
        if self.by != other.by:
            return False
        if self.by == "time":
            return None in (self.grain, other.grain) or self == other
        pairs = (self, other), (other, self)
        return not any(small.most is not None and small.most < large.least for small, large in pairs)

    @property
    def words(self) -> str:
        if self.by == "time":
            return f"windows of one {self.grain} ({self.time_zone})"
        if self.most is None:
            return "units of blocks"
        return f"units of {'' if self.least == self.most else 'at most '}{self.most} blocks"


def _check_same_units(draft: Draft, job: JobDraft) -> None:
    """Inputs that are joined unit by unit have units that can be the same."""
    joins = job.setting("execution_strategy") == Strategy.PER_PARTITION
    items = [(_units_of(draft, item), item.place) for item in job.inputs if item.read is ReadMode.UNIT]
    for (first, first_place), (second, second_place) in combinations(items, 2):
        if first.by != second.by:
            place = first_place if first.by == "time" else second_place
            message = "One input has units of blocks, another windows of time: they never match."
            place.problem("units_mismatch", message, "Give the job `units: {by: time, ...}`.")
            return
        if joins and not first.can_equal(second):
            message = f"This input has {second.words}, another {first.words}: they never match."
            size = max(first.least, second.least)
            grid = "{by: time, ...}" if first.by == "time" else f"{{by: blocks, size: {size}}}"
            second_place.problem("units_mismatch", message, f"Give the job `units: {grid}`, or both units of one size.")
            return


def _units_of(draft: Draft, item: InputDraft) -> _InputUnits:
    """Follows the jobs upstream to the one that chooses the units."""
    visited: set[str] = set()
    is_same = True
    units = _InputUnits()
    while item.output is not None:
        name = item.output.job
        job = draft.by_name[name]
        own = _chosen_units(job)
        driving = [other for other in job.inputs if other.read is ReadMode.UNIT]
        if own is not None or not driving or name in visited:
            units = own or units
            break
        visited.add(name)
        # Of several inputs by update there are units of all, and users' code announces those it chooses.
        joins = len(driving) == 1 or job.setting("execution_strategy") == Strategy.PER_PARTITION
        is_same = is_same and joins and job.record.get("operator") != "udf"
        item = driving[0]
    else:
        dataset = draft.surroundings.datasets.get(item.dataset or "")
        grid = None if dataset is None else dataset.units
        units = units if grid is None else _of_grid(grid.by, grid.size, grid.grain, grid.time_zone)
    return units if is_same else _InputUnits(by=units.by)


def _chosen_units(job: JobDraft) -> _InputUnits | None:
    """The units of a job that has others than its inputs."""
    units: Record | None = job.record.get("units")
    if units is not None:
        return _of_grid(units.get("by"), units.get("size"), units.get("grain"), units.get("time_zone", _UTC))
    operator = CATALOGUE.get(job.record.get("operator", ""))
    if operator is None or operator.config_type not in (RangeAggregatorConfig, RangeSplitterConfig):
        return None
    config = job.config(operator)
    if isinstance(config, RangeAggregatorConfig):
        return _InputUnits(least=config.size, most=config.size)
    return _InputUnits(most=config.size if isinstance(config, RangeSplitterConfig) else None)


def _of_grid(by: str | None, size: int | None, grain: str | None, time_zone: str) -> _InputUnits:
    if by == "time":
        return _InputUnits("time", grain, time_zone)
    return _InputUnits(least=size or 1, most=size)


def _storage(draft: Draft, item: InputDraft) -> str | None:
    """How the input is kept; None for an output that has no name, which its operator decides."""
    if item.dataset is not None:
        return draft.surroundings.datasets[item.dataset].storage
    assert isinstance(item.output, OutputAddress)
    entry = draft.publishers.get(item.output)
    if entry is None:
        return "none" if draft.by_name[item.output.job].only_emits else None
    storage: str | None = "buffered" if entry.buffered else entry.record.get("storage")
    return storage
