"""Circles through several DAGs: a document that was fine when it was written may close one by counting again."""

from collections.abc import Mapping

from tracelake.dag import KnownDataset
from tracelake.dispatcher.deploy.hashes import publications
from tracelake.dispatcher.deploy.plan import dag_invalid
from tracelake.model.dag import Dag, Problem


def check_circles(document: Dag, datasets: Mapping[str, KnownDataset]) -> None:
    """Raises `dag_invalid` if jobs of the document would feed each other, by way of what other DAGs do now."""
    published = {publish.name: {address.job for address in publish.sources} for publish in document.publish}
    names = {address: publish.name for address, publish in publications(document).items()}
    upstream: dict[str, set[str]] = {}
    for job in document.jobs:
        inputs = upstream.setdefault(job.name, set())
        for item in job.inputs:
            dataset = item.dataset
            if item.output is not None:
                inputs.add(item.output.job)
                # Jobs of other DAGs may write it as well.
                dataset = names.get((item.output.job, item.output.output_index))
            if dataset is not None and dataset in datasets:
                for name in datasets[dataset].made_from & published.keys():
                    inputs |= published[name]
    for name in upstream:
        if name in _before(name, upstream):
            message = f"The job `{name}` would be fed by itself, through DAGs that read what this one publishes."
            raise dag_invalid([Problem(code="cycle", message=message, line=1, column=1, path="jobs")])


def _before(name: str, upstream: Mapping[str, set[str]]) -> set[str]:
    ancestors: set[str] = set()
    waiting = [name]
    while waiting:
        for job in upstream.get(waiting.pop(), ()):
            if job not in ancestors:
                ancestors.add(job)
                waiting.append(job)
    return ancestors
