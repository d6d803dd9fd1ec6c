"""Circles through several DAGs: a document that was fine when it was written may close one by counting again."""

from collections.abc import Collection, Mapping

from tracelake.dag import KnownDataset
from tracelake.dispatcher.deploy.hashes import publications
from tracelake.dispatcher.deploy.plan import dag_invalid
from tracelake.model.dag import Dag, ReadMode, unlocated


def check_circles(document: Dag, datasets: Mapping[str, KnownDataset]) -> None:
    """Raises `dag_invalid` if jobs of the document would feed each other, by way of what other DAGs do now."""
    published = {publish.name: {address.job for address in publish.sources} for publish in document.publish}
    names = {address: publish.name for address, publish in publications(document).items()}
    upstream: dict[str, set[str]] = {}
    for job in document.jobs:
        inputs = upstream.setdefault(job.name, set())
        for item in job.inputs:
            if item.read is ReadMode.PREVIOUS:
                continue
            dataset = item.dataset
            if item.output is not None:
                inputs.add(item.output.job)
                # Jobs of other DAGs may write it as well.
                dataset = names.get((item.output.job, item.output.output_index))
            if dataset is not None and dataset in datasets:
                for name in datasets[dataset].made_from & published.keys():
                    inputs |= published[name]
    for name in upstream:
        if name in ancestors(name, upstream):
            message = f"The job `{name}` would be fed by itself, through DAGs that read what this one publishes."
            raise dag_invalid([unlocated("cycle", message, "jobs")])


def ancestors(name: str, upstream: Mapping[str, Collection[str]]) -> set[str]:
    """Returns everything upstream of the name; the name itself is among it if it is part of a circle."""
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        direct = set(upstream.get(waiting.pop(), ())) - reached
        reached |= direct
        waiting += direct
    return reached
