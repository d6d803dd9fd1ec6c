"""A Dag written as a document again, and documents that hypothesis makes up."""

import copy
from typing import Any

import yaml
from hypothesis import strategies as st

from tracelake.model.dag import Dag, Input, JobDocument, OutputAddress, Publish, Schema, SourceKind


def render(dag: Dag) -> str:
    document: dict[str, Any] = {"name": dag.name, "jobs": [_job(job) for job in dag.jobs]}
    if dag.publish:
        document["publish"] = {item.name: _publish(item) for item in dag.publish}
    return to_yaml(document)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quotes numbers of YAML 1.2 like 1e100, which are texts for PyYAML."""
    try:
        float(text)
    except ValueError:
        return dumper.represent_str(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')


def to_yaml(document: Any) -> str:
    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(str, _represent_text)
    text: str = yaml.dump(document, Dumper=Dumper, sort_keys=False)
    return text


def _job(job: JobDocument) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": job.name,
        "activation": job.activation.value,
        "runtime": job.runtime,
        "operator": job.operator,
        "outputs": job.outputs,
        "inputs": [_input(item) for item in job.inputs],
        "execution_strategy": job.execution_strategy.value,
        "update_strategy": job.update_strategy,
        "unique_key": list(job.unique_key),
        "config": job.config,
        "secrets": list(job.secrets),
        "scaling": {"max_concurrency": job.max_concurrency} if job.max_concurrency else None,
        "timeout_seconds": job.timeout_seconds,
        "heartbeat_timeout_seconds": job.heartbeat_timeout_seconds,
        "max_attempts": job.max_attempts,
        "priority": job.priority,
        "max_queue_depth": job.max_queue_depth,
        "max_queue_age": job.max_queue_age_seconds,
        "bootstrap": {"reset_outputs": job.reset_outputs},
    }
    if job.source is not None:
        source = {"kind": job.source.kind.value, "schedule": job.source.schedule}
        if job.source.kind is SourceKind.CRON:
            source |= {"time_zone": job.source.time_zone, "catch_up": job.source.catch_up.value}
        fields["source"] = _said(source | {"webhook_path": job.source.webhook_path})
    if job.udf is not None:
        udf = job.udf
        fields["udf"] = _said({"bundle_id": udf.bundle_id, "entrypoint": udf.entrypoint, "memory_mb": udf.memory_mb})
    return _said(fields)


def _said(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _address(address: OutputAddress) -> dict[str, Any]:
    return {"job": address.job, "output_index": address.output_index}


def _input(item: Input) -> dict[str, Any]:
    origin = {"dataset": item.dataset} if item.output is None else _address(item.output)
    return _said({"from": origin, "where": item.where})


def _publish(item: Publish) -> dict[str, Any]:
    sources = [_address(address) for address in item.sources]
    schema = None if item.schema is None else _schema(item.schema)
    return _said(
        {
            "from": sources,
            "storage": item.storage,
            "write_mode": item.write_mode,
            "schema": schema,
            "writers": list(item.writers) or None,
        }
    )


def _schema(schema: Schema) -> dict[str, Any]:
    columns = [
        _said(
            {
                "name": column.name,
                "type": column.type.value,
                "nullable": column.nullable,
                "max_length": column.max_length,
                "precision": column.precision,
                "scale": column.scale,
                "enum": None if column.enum is None else list(column.enum),
            }
        )
        for column in schema.columns
    ]
    indexes = [list(index) for index in schema.indexes]
    return {"columns": columns, "unique": list(schema.unique), "indexes": indexes}


# --- documents that are good

NAMES = ("a", "b_1", "block_ranges", "on", "x" * 128)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(SCALARS, lambda below: st.lists(below, max_size=3) | st.dictionaries(TEXTS, below, max_size=3))
DURATIONS = st.integers(1, 10_000) | st.sampled_from(["30s", "5m", "2h", "1d"])
LIMITS: dict[str, st.SearchStrategy[Any]] = {
    "execution_strategy": st.sampled_from(["PerUpdate", "PerPartition"]),
    "timeout_seconds": st.integers(1, 900),
    "heartbeat_timeout_seconds": st.integers(1, 600),
    "max_attempts": st.integers(1, 10),
    "priority": st.sampled_from(["normal", "bulk"]),
    "max_queue_depth": st.integers(1, 10_000),
    "max_queue_age": DURATIONS,
    "scaling": st.fixed_dictionaries({}, optional={"max_concurrency": st.integers(1, 100)}),
}
SOURCES = st.sampled_from(
    [
        {"kind": "manual"},
        {"kind": "cron", "schedule": "*/5 1-3,7 * JAN-mar 0"},
        {"kind": "cron", "schedule": "0  0  29 2 *", "time_zone": "UTC", "catch_up": "last"},
        {"kind": "cron", "schedule": "30 2 * * *", "time_zone": "Europe/Berlin", "catch_up": "all"},
    ]
)
WORK: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.sampled_from(["dispatcher", "lambda", "ecs_platform"]).map(lambda name: {"operator": "noop", "runtime": name}),
    st.builds(
        lambda seconds, fails: {
            "operator": "sleep",
            "runtime": "ecs_platform",
            "config": {"seconds": seconds, "fail_attempts": fails},
        },
        st.integers(0, 9) | st.floats(0, 9),
        st.integers(0, 1),
    ),
    st.builds(
        lambda size: {"operator": "range_splitter", "runtime": "dispatcher", "config": {"size": size}},
        st.integers(1, 2**62),
    ),
    st.builds(
        lambda config, bundle: {"operator": "udf", "runtime": "lambda", "config": config, "udf": bundle},
        st.dictionaries(TEXTS, VALUES, max_size=3),
        st.sampled_from(
            [
                {"bundle_id": "rs"},
                {"bundle_id": "rs", "entrypoint": "x"},
                {"bundle_id": "py", "entrypoint": "m.f", "memory_mb": 512},
            ]
        ),
    ),
)
FILTERS = st.dictionaries(TEXTS, SCALARS | st.lists(SCALARS, min_size=1, max_size=3), max_size=3)
COLUMNS = st.sampled_from(
    [
        {"id": "text(10)", "n": "int64", "d": "decimal(38,18)"},
        [{"name": "id", "type": "uint256"}, {"name": "n", "type": "text", "enum": ["a", "b"], "nullable": False}],
    ]
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Each job reads jobs before it, so there is no circle; then they are shuffled."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    jobs: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        job: dict[str, Any] = {"name": name, "outputs": draw(st.integers(1, 3))}
        if number == 0 or draw(st.booleans()):
            jobs.append({**job, "activation": "source", "source": draw(SOURCES)})
            continue
        before = st.sampled_from(jobs).flatmap(
            lambda job: st.integers(0, job["outputs"] - 1).map(
                lambda index: {"job": job["name"], "output_index": index}
            )
        )
        origins = draw(
            st.lists(
                before | st.just({"dataset": "raw_blocks"}), min_size=1, max_size=3, unique_by=lambda item: str(item)
            )
        )
        inputs = [{"from": origin} | ({"where": draw(FILTERS)} if draw(st.booleans()) else {}) for origin in origins]
        limits = draw(st.fixed_dictionaries({}, optional=LIMITS))
        jobs.append({**job, "activation": "reactive", "inputs": inputs, **limits, **draw(WORK)})
    document: dict[str, Any] = {"name": draw(st.sampled_from(NAMES)), "jobs": draw(st.permutations(jobs))}
    if draw(st.booleans()):
        document["defaults"] = draw(st.fixed_dictionaries({}, optional=LIMITS))
    if draw(st.booleans()):
        index = draw(st.integers(0, jobs[-1]["outputs"] - 1))
        # User functions write files; what cuts ranges has no rows at all.
        storage = {"udf": "s3", "range_splitter": "none"}.get(jobs[-1].get("operator", ""), "postgres")
        entry = {"from": {"job": jobs[-1]["name"], "output_index": index}, "storage": storage}
        if storage != "none":
            unique = draw(st.sampled_from([[], ["id"]]))
            entry["schema"] = {"columns": draw(COLUMNS), "unique": unique, "indexes": ["n"]}
        document["publish"] = {"out": entry}
    return copy.deepcopy(document)  # what is sampled is shared, and tests change documents


def shuffled(value: Any, draw: Any) -> Any:
    """The same document with the keys of every map in another order; that of columns is the table's."""
    if isinstance(value, dict):
        keys = draw(st.permutations(list(value)))
        return {key: value[key] if key == "columns" else shuffled(value[key], draw) for key in keys}
    return [shuffled(item, draw) for item in value] if isinstance(value, list) else value
