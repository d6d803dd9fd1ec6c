"""What becomes of rows of tables that tasks write directly, and of files of live datasets, when a writer changes.

They stay: they were read from a chain once, perhaps in days, and a follower goes on at the newest block. So the plan
warns of a writer that reads something else from now on, and a table never gets rows of another chain.
"""

from collections.abc import Collection, Iterator, Mapping

from tracelake.dispatcher.deploy.hashes import Address, is_direct_table
from tracelake.dispatcher.deploy.table_rows import list_jobs
from tracelake.model.dag import Dag, Problem, Publish, unlocated

Outputs = Mapping[Address, str]
"""The name of the dataset that each output of the active version is."""


def describe_direct_rows(dag: Dag, outputs: Outputs, edited: Collection[str]) -> dict[str, list[str]]:
    """By dataset. `edited`: jobs whose own definition changes what they write."""
    texts: dict[str, list[str]] = {}
    for publish, writers in _direct_tables(dag, outputs):
        if names := writers & {*edited}:
            texts[publish.name] = [
                f"WARNING: old rows stay: blocks that are there are not read again, though {list_jobs(names)} changed. "
                "Publish under another name to read all of them"
            ]
    return texts


def find_other_chains(dag: Dag, before: Dag, outputs: Outputs) -> list[Problem]:
    problems = []
    for publish, writers in _direct_tables(dag, outputs):
        chains = {before.job(name).config.get("chain_id") for name in writers} - {None}
        for source in publish.sources:
            chain_id = dag.job(source.job).config.get("chain_id")
            if len(chains) == 1 and chain_id not in (*chains, None):
                text = (
                    f"`chain_id` of `{source.job}` cannot become {chain_id}: `{publish.name}` has rows of chain "
                    f"{chains.pop()}. Publish under another name instead."
                )
                problems.append(unlocated("table_change", text, f"jobs.{source.job}.config.chain_id"))
                break
    return problems


def find_continued_jobs(dag: Dag, outputs: Outputs) -> frozenset[str]:
    """Jobs that compute nothing again, though they are changed: they write what the active version has in tables, or
    only follow what those jobs announce, such as the units of a chain that are yet to be read."""
    published = {
        (source.job, source.output_index) for publish, _ in _direct_tables(dag, outputs) for source in publish.sources
    }
    jobs = {job for job, _ in published}
    for job in dag.jobs:  # upstream first
        origins = [item.output and (item.output.job, item.output.output_index) for item in job.inputs]
        if origins and all(origin and origin[0] in jobs and origin not in published for origin in origins):
            jobs.add(job.name)
    return frozenset(jobs)


def _direct_tables(dag: Dag, outputs: Outputs) -> Iterator[tuple[Publish, set[str]]]:
    """Those that the active version has too, with the jobs that write them in it."""
    for publish in dag.publish:
        writers = {job for (job, _), name in outputs.items() if name == publish.name}
        if writers and is_direct_table(publish):
            yield publish, writers
