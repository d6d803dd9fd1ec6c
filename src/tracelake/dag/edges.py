"""Resolves the inputs of jobs, orders jobs by them, and reports cycles."""

import heapq
from collections import deque
from collections.abc import Iterable
from itertools import chain

import msgspec

from tracelake.catalogue import CATALOGUE
from tracelake.dag.draft import Draft, InputDraft, JobDraft
from tracelake.dag.kinds import INVALID, DocumentPlace, Record
from tracelake.dag.problems import shown
from tracelake.dag.where import check_where
from tracelake.model.dag import OutputAddress, ReadMode, Schema

_SHOWN_JOBS = 20


def resolve_output(draft: Draft, record: Record) -> OutputAddress | None:
    """The output that `{job, output_index}` names, or None after reporting a problem."""
    name, index = record.get("job"), record.get("output_index", 0)
    if name is None or record.bad("output_index"):
        return None
    job = draft.by_name.get(name)
    if job is None:
        place = record.at("job")
        hint = place.problems.did_you_mean(name, draft.by_name)
        if not hint and (name in draft.publish_names or name in draft.surroundings.datasets):
            hint = f"It is a dataset: write `from: {{dataset: {name}}}`."
        # A job without a valid name may be the one that is meant, and was reported already.
        if hint or draft.knows_all_names:
            place.problem("unknown_job", f"There is no job {shown(name)} in this DAG.", hint)
        return None
    if job.outputs is None:
        return None
    if index >= job.outputs:
        place = record.at("output_index") if record.has("output_index") else record.at("job")
        counts = f"It has {job.outputs}, counted from 0." if job.outputs else "It has none."
        place.problem("unknown_output", f"Job {shown(name)} has no output {index}. {counts}")
        return None
    return OutputAddress(job=name, output_index=index)


def resolve_inputs(draft: Draft, job: JobDraft) -> None:
    read = job.record.get("inputs")
    earlier_inputs: dict[bytes, str] = {}
    for record in read or ():
        if record is INVALID:
            continue
        resolved = _resolve_input(draft, job, record)
        if resolved is None or record.bad("where"):  # its units are unknown
            continue
        job.inputs.append(resolved)
        _check_operator(draft, job, resolved)
        values = None if resolved.where is None else resolved.where.values
        key = msgspec.json.encode([resolved.output, resolved.dataset, values, resolved.read], order="deterministic")
        if key in earlier_inputs:
            message = f"The same source with the same `where` is `{earlier_inputs[key]}` already."
            resolved.place.problem("duplicate_input", message, "Leave one of them out.")
        else:
            earlier_inputs[key] = resolved.place.path


def _resolve_input(draft: Draft, job: JobDraft, record: Record) -> InputDraft | None:
    origin = record.get("from")
    if record.has("from") == record.has("self"):
        if record.has("from"):
            record.place.problem("wrong_type", f"{record.place.title} takes `from` or `self`, not both.")
        else:
            record.missing("from", "Write `{from: {job: ...}}`, `{from: {dataset: ...}}` or `{self: previous}`.")
        return None
    if record.has("self"):
        return None if record.bad("self") else _resolve_self(job, record)
    if origin is None or record.bad("read"):
        return None
    if origin.has("dataset") == origin.has("job"):
        if origin.has("dataset"):
            origin.place.problem("wrong_type", f"{origin.place.title} takes `job` or `dataset`, not both.")
        else:
            origin.missing("job", "Write `{job: ...}` or `{dataset: ...}`.")
        return None
    default = ReadMode.WINDOW if job.record.has("units") else ReadMode.UNIT
    resolved = InputDraft(record.place, where=record.get("where"), record=record)
    resolved.read = ReadMode(record.get("read", default))
    if resolved.where is not None and not resolved.where.values:
        resolved.where = None
    if origin.has("job"):
        address = resolve_output(draft, origin)
        if address is None:
            return None
        resolved.output = draft.canonical_address(address)
    elif not resolve_dataset(draft, origin, resolved):
        return None
    _check_filter(draft, resolved)
    return resolved


def _resolve_self(job: JobDraft, record: Record) -> InputDraft | None:
    index = record.get("output_index", 0)
    if job.raw_name is None or job.outputs is None or record.bad("output_index"):
        return None
    if index >= job.outputs:
        record.at("output_index").problem("unknown_output", f"The job has no output {index}. It has {job.outputs}.")
        return None
    output = OutputAddress(job=job.raw_name, output_index=index)
    return InputDraft(record.place, output, where=record.get("where"), record=record, read=ReadMode.PREVIOUS)


def resolve_dataset(draft: Draft, origin: Record, resolved: InputDraft, *, report: bool = True) -> bool:
    """Whether `dataset` names one that the DAG may read; what is wrong is reported, unless it was already."""
    if origin.has("output_index"):
        origin.at("output_index").problem("wrong_type", "A dataset has no `output_index`.", "Leave it out.")
    name = origin.get("dataset")
    if name is None:
        return False
    if name in draft.publish_names:
        entry = draft.publish.get(name)
        if entry is None or not entry.writers:
            return False
        resolved.output = entry.writers[0]
        return True
    dataset = draft.surroundings.datasets.get(name)
    is_removed = dataset is not None and dataset.is_removed
    if dataset is not None and not is_removed and (dataset.owner_dag is None or dataset.owner_dag != draft.name):
        resolved.dataset = name
        return True
    place = origin.at("dataset")
    if not report:
        return False
    if dataset is not None and is_removed:
        message = f"The dataset {shown(name)} was removed with the DAG `{dataset.owner_dag}`."
        place.problem("unknown_dataset", message, f"Restore it: `trace remove --undo {dataset.owner_dag}`.")
        return False
    if dataset is not None:
        message = f"This DAG made the dataset {shown(name)} before, but does not publish it in this document."
        place.problem("unknown_dataset", message, "Publish it, or read the job's output: `from: {job: ...}`.")
        return False
    hint = place.problems.did_you_mean(name, chain(draft.publish_names, draft.surroundings.datasets))
    if not hint and name in draft.by_name:
        hint = f"It is a job: write `from: {{job: {name}}}`."
    place.problem("unknown_dataset", f"There is no dataset {shown(name)}.", hint)
    return False


def _dataset_of(draft: Draft, resolved: InputDraft) -> tuple[bool, Schema | None]:
    """Whether the input is a buffered dataset, and its schema if there is one."""
    if resolved.output is not None:
        entry = draft.publishers.get(resolved.output)
        return (False, None) if entry is None else (entry.buffered, entry.schema)
    assert resolved.dataset is not None
    dataset = draft.surroundings.datasets[resolved.dataset]
    return dataset.storage == "buffered", dataset.schema


def _check_operator(draft: Draft, job: JobDraft, resolved: InputDraft) -> None:
    operator = job.record.get("operator")
    if operator not in CATALOGUE or not CATALOGUE[operator].only_files:
        return
    buffered, _ = _dataset_of(draft, resolved)
    if buffered:
        message = f"`{operator}` works on blocks in files, and this dataset is a table that is read by commits."
        resolved.place.problem("operator_storage", message, "Read it by a `spark_sql` job.")


def _check_filter(draft: Draft, resolved: InputDraft) -> None:
    if resolved.where is None:
        return
    _, schema = _dataset_of(draft, resolved)
    if schema is not None:
        check_where(resolved.where, draft.columns_of(schema))


# --- cycles


def _writers(draft: Draft, item: InputDraft) -> Iterable[OutputAddress]:
    """The outputs of this DAG that the input depends on."""
    own: list[OutputAddress] = []
    dataset = item.dataset
    if item.output is not None:
        own = draft.co_writers(item.output)
        entry = draft.publishers.get(item.output)
        if entry is None or entry.name not in draft.surroundings.datasets:
            return own
        dataset = entry.name  # jobs of other DAGs may write it as well
    assert dataset is not None
    before = draft.surroundings.datasets[dataset].made_from
    entries = (draft.publish[name] for name in sorted(before & draft.publish.keys()))
    return chain(own, (address for entry in entries for address in entry.writers))


class Graph:
    """Which job reads which, also through a dataset that several jobs write, and through jobs of other DAGs."""

    def __init__(self, draft: Draft) -> None:
        self.names = list(draft.by_name)
        self.upstream: dict[str, dict[str, DocumentPlace]] = {name: {} for name in self.names}
        for name, job in draft.by_name.items():
            for item in job.inputs:
                # That a source has inputs was reported; removing them breaks the cycle.
                if job.is_source or item.is_previous:
                    continue
                for address in _writers(draft, item):
                    self.upstream[name].setdefault(address.job, item.place)
        # Rows that are checked against what is made of them could never be committed.
        for check in draft.checks:
            for address in () if check.target is None else _writers(draft, check.target):
                self.upstream[check.output.job].setdefault(address.job, check.target.place)  # type: ignore[union-attr]

    def in_order(self) -> list[str]:
        """Topological order, ties broken by name. Jobs on a cycle and their readers are left out."""
        waits_for = {name: len(jobs) for name, jobs in self.upstream.items()}
        readers: dict[str, list[str]] = {name: [] for name in self.names}
        for name, jobs in self.upstream.items():
            for job in jobs:
                readers[job].append(name)
        ready = [name for name, count in waits_for.items() if count == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            name = heapq.heappop(ready)
            order.append(name)
            for reader in readers[name]:
                waits_for[reader] -= 1
                if waits_for[reader] == 0:
                    heapq.heappush(ready, reader)
        return order

    def report_cycles(self) -> None:
        """Report each cycle whose jobs are in no cycle reported before."""
        reported = set(self.in_order())
        for name in self.names:
            if name in reported:
                continue
            cycle = self._cycle_through(name)
            if cycle is None or reported.intersection(cycle):
                continue
            reported.update(cycle)
            path = [f"`{job}`" for job in (*cycle, name)]
            if len(path) > _SHOWN_JOBS:
                path[_SHOWN_JOBS // 2 : -_SHOWN_JOBS // 2] = ["..."]
            message = f"Jobs feed each other in a circle: {' -> '.join(path)}."
            self.upstream[name][cycle[-1]].problem("cycle", message, "Remove one of the inputs.")

    def _cycle_through(self, start: str) -> list[str] | None:
        """The shortest cycle, in the direction of the data, beginning with `start`."""
        after: dict[str, str] = {}
        queue = deque([start])
        while queue:
            name = queue.popleft()
            for job in self.upstream[name]:
                if job == start:
                    cycle, step = [start], name
                    while step != start:
                        cycle.append(step)
                        step = after[step]
                    return cycle
                if job not in after:
                    after[job] = name
                    queue.append(job)
        return None
