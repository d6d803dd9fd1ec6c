"""What becomes of the rows of a table when its writers change, in words for the plan.

With `on_change: rebuild` the table shows the rows of the active version alone: those of a changed job are built beside
the old ones and swapped at the cutover, and an earlier version brings its own back. With `keep` old rows stay. Rows
without a unit stay in any case: nobody knows which of them a job would make again.
"""

from collections.abc import Callable, Collection, Mapping

from tracelake.dispatcher.deploy.hashes import Address, storage_of
from tracelake.dispatcher.deploy.outputs import Generation, StoredDataset
from tracelake.model.dag import Dag, OnChange, SourceKind


def describe_rows(
    dag: Dag,
    before: Dag,
    outputs: Mapping[Address, tuple[str, Generation]],
    *,
    changed: Collection[str],
    restored: Collection[str],
    datasets: Mapping[str, StoredDataset],
) -> dict[str, list[str]]:
    """By dataset. `before` is the active version with its `outputs`; `changed` are jobs that write other rows from now
    on, `restored` those that an earlier version had."""
    endless = {job.name for job in before.jobs if job.source is not None and job.source.kind is SourceKind.ALWAYS_ON}
    texts: dict[str, list[str]] = {}
    for publish in dag.publish:
        if storage_of(dag, publish) != "buffered":
            continue
        writers = {address[0] for address, (name, _) in outputs.items() if name == publish.name}
        removed = writers - {source.job for source in publish.sources}
        rule = publish.on_change if publish.owner is None else _owners_rule(datasets.get(publish.name))
        lines = [
            text(list_jobs(jobs))
            for jobs, text in _outcomes(rule, writers, removed, {*changed}, {*restored}, endless)
            if jobs
        ]
        if lines:
            texts[publish.name] = lines
    return texts


def _outcomes(
    rule: OnChange, writers: set[str], removed: set[str], changed: set[str], restored: set[str], endless: set[str]
) -> list[tuple[set[str], Callable[[str], str]]]:
    other = (writers & changed) | removed
    stay = (
        other & endless,
        lambda jobs: f"WARNING: old rows stay: those of {jobs} have no unit, because a source has no end",
    )
    units = other - endless
    if rule == "keep":
        text = "WARNING: old rows stay (`on_change: keep`): what {} wrote so far is not removed"
        return [(units, text.format), stay]
    return [
        (units & changed - restored, "rebuild the rows of {}: the new ones replace the old ones at the cutover".format),
        (units & restored, "show the rows again that {} wrote in an earlier version".format),
        (units & removed, "remove the rows of {}, which no longer writes it, at the cutover".format),
        stay,
    ]


def _owners_rule(dataset: StoredDataset | None) -> OnChange:
    return "rebuild" if dataset is None else dataset.on_change


def list_jobs(jobs: Collection[str]) -> str:
    *others, last = (f"`{job}`" for job in sorted(jobs))
    return f"{', '.join(others)} and {last}" if others else last
