"""Reads the `publish` map: the names of outputs, their owners, and how they are written."""

from tracelake.catalogue import CATALOGUE, OperatorSpec
from tracelake.catalogue.tables import MAX_UNIQUE, ORDERED_TYPES, RESERVED, SYSTEM
from tracelake.dag.columns import build_schema, check_column, check_schema
from tracelake.dag.draft import Draft, PublishDraft
from tracelake.dag.edges import resolve_output
from tracelake.dag.fields import MAX_DATASETS, PUBLISH
from tracelake.dag.kinds import INVALID, NAME, DocumentPlace, Record
from tracelake.dag.nodes import MapNode
from tracelake.dag.problems import shown
from tracelake.dag.surroundings import KnownDataset, kept_as
from tracelake.model.runtime import DISPATCHER

_OF_THE_OWNER = (
    "schema",
    "on_conflict",
    "on_change",
    "max_queue_depth",
    "max_queue_age",
    "writers",
    "description",
    "owner",
    "columns",
)
"""Fields of a dataset that a DAG with a grant to write it does not declare."""


def read_publish(draft: Draft) -> None:
    place: DocumentPlace | None = draft.record.get("publish")
    if place is None:
        return
    if not isinstance(place.node, MapNode):
        place.wrong_type("a map of dataset name to entry", "Write `publish: {name: {from: ..., storage: ...}}`.")
        return
    entries = place.entries()
    if len(entries) > MAX_DATASETS:
        place.problem("out_of_range", f"A DAG publishes at most {MAX_DATASETS} datasets; here are {len(entries)}.")
        return
    draft.publish_names = frozenset(entries)
    for name, (key, value) in entries.items():
        good_name = NAME.read(key) is not INVALID
        record = PUBLISH.read(value)
        if record is INVALID:
            continue
        entry = PublishDraft(name, key, record)
        _resolve_writers(draft, entry)
        # The other checks are for datasets of this DAG.
        if (not good_name or _check_owner(draft, entry)) and entry.owner is None:
            _check_shape(entry)
            _derive_schema(draft, entry)
            if record.get("writers"):
                _check_writers(draft, entry)
        draft.publish[name] = entry


def _check_owner(draft: Draft, entry: PublishDraft) -> bool:
    """False if another owner has the dataset and has not granted this DAG to write it."""
    dataset = draft.surroundings.datasets.get(entry.name)
    if dataset is None or draft.name is None:
        return True
    if dataset.owner_dag != draft.name:
        if dataset.is_removed:
            message = f"The dataset {shown(entry.name)} belongs to the DAG `{dataset.owner_dag}`, which was removed."
            hint = f"Choose another name, or delete that DAG for good: `trace remove --purge {dataset.owner_dag}`."
            entry.key.problem("dataset_owned", message, hint)
            return False
        if dataset.owner_dag is not None and draft.name in dataset.writers:
            _check_granted(dataset, dataset.owner_dag, entry)
            return True
        owner = f"the DAG `{dataset.owner_dag}`" if dataset.owner_dag is not None else "jobs that no DAG made"
        hint = "Choose another name."
        if dataset.storage == "buffered" and dataset.owner_dag is not None:
            hint = f"Choose another name, or list `{draft.name}` in `publish.{entry.name}.writers` of {owner}."
        entry.key.problem("dataset_owned", f"The dataset {shown(entry.name)} belongs to {owner}.", hint)
        return False
    storage = _storage(draft, entry)
    if storage is not None and storage != dataset.storage:
        message = (
            f"The dataset {shown(entry.name)} has {kept_as(dataset.storage)}, which cannot become {kept_as(storage)}."
        )
        hint = "Publish under another name."
        if dataset.storage == "buffered" and storage == "postgres":
            hint = "Add `write_mode: buffered`, or publish under another name."
        entry.record.at("storage").problem("dataset_storage", message, hint)
    return True


def _check_granted(dataset: KnownDataset, owner: str, entry: PublishDraft) -> None:
    """Check an entry for a dataset of another DAG: it names writers only, the owner declares everything else."""
    entry.owner, entry.schema = owner, dataset.schema
    for name in _OF_THE_OWNER:
        if entry.record.has(name):
            message = f"`{name}` of {shown(entry.name)} is declared by the DAG `{owner}`, which owns it."
            entry.record.at(name).problem("dataset_owned", message, "Leave it out.")
    if not entry.buffered and not entry.record.bad("write_mode"):
        message = f"{shown(entry.name)} is a buffered dataset of the DAG `{owner}`."
        place = entry.record.at("write_mode" if entry.record.has("write_mode") else "storage")
        place.problem("dataset_storage", message, "Set `storage: postgres` and `write_mode: buffered`.")


def _storage(draft: Draft, entry: PublishDraft) -> str | None:
    """The storage that the dataset would have; None if that is unknown."""
    if not entry.writers or entry.record.bad("write_mode"):
        return None
    if all(draft.by_name[writer.job].only_emits for writer in entry.writers):
        return "none"  # events, and no rows
    storage: str | None = entry.record.get("storage")
    return "buffered" if entry.buffered else storage


def _resolve_writers(draft: Draft, entry: PublishDraft) -> None:
    records: list[Record] = [record for record in entry.record.get("from", ()) if record is not INVALID]
    if len(records) > 1 and not entry.buffered and not entry.live and not entry.record.bad("write_mode"):
        message = f"{shown(entry.name)} has {len(records)} writers, which only a buffered or live dataset can have."
        entry.record.at("from").problem("several_sources", message, "Set `write_mode: buffered`, or name one output.")
    for record in records:
        address = resolve_output(draft, record)
        if address is None:
            continue
        other = draft.publishers.get(address)
        if other is not None:
            what = f"Output {address.output_index} of job `{address.job}` is published already"
            record.place.problem("duplicate_publish", f"{what}, as {shown(other.name)}.", "Publish it once.")
            continue
        if entry.buffered and draft.by_name[address.job].only_emits:
            message = f"Job `{address.job}` only emits events: it has no rows for a buffered dataset."
            record.place.problem("nothing_runs", message, "Name a job that runs.")
            continue
        if not _check_operator(draft, entry, record, address.job):
            continue
        draft.publishers[address] = entry
        entry.writers.append(address)
    entry.writers.sort(key=lambda address: (address.job, address.output_index))


def _check_operator(draft: Draft, entry: PublishDraft, writer: Record, job: str) -> bool:
    """Whether the job's operator can write to the dataset's storage."""
    made_by = draft.by_name[job]
    operator = CATALOGUE.get(made_by.record.get("operator", ""))
    storage: str | None = entry.record.get("storage")
    if operator is None or storage is None or made_by.only_emits or entry.record.bad("write_mode"):
        return True
    if entry.buffered and storage != "postgres":
        return True  # `_check_shape` reports it
    in_dispatcher = made_by.setting("runtime") == DISPATCHER
    if (objection := _objection(operator, storage, entry.buffered, in_dispatcher)) is None:
        return True
    reason, hint = objection
    writer.place.problem("operator_storage", f"Job `{job}` runs `{operator.name}`, {reason}.", hint)
    return False


def _objection(operator: OperatorSpec, storage: str, buffered: bool, in_dispatcher: bool) -> tuple[str, str] | None:
    """Why the operator cannot write to the storage, and what to do; None if it can."""
    if storage == "s3" and operator.output_storage != "s3":
        return "which writes no files", "Set `storage: none` to publish its events, or name a job that writes files."
    if storage == "none" and operator.output_storage != "none":
        return "which writes files, and `storage: none` is for events without rows", "Set `storage: s3`."
    if storage == "live":
        if operator.fills_tables or (operator.output_storage == "s3" and operator.trusted):
            return None
        return (
            "which writes neither the table nor the files of a live dataset",
            "Name a `block_follower`, and jobs of `evm_ingest` and `parquet_compact`.",
        )
    if storage != "postgres":
        return None
    if operator.only_files:
        hint = "Publish a `spark_sql` job that reads its output."
        if buffered:
            return "which writes files and hands no rows to a sink", hint
        return "which writes files and no tables", f"Set `storage: s3`, or: {hint}"
    if operator.only_events:
        return "which makes events and no rows", "Set `storage: none` to publish its events, or name a job with rows."
    if buffered and in_dispatcher:
        return "but in the Dispatcher, which makes events and no rows", "Run it on a runtime with workers."
    if not buffered and not operator.fills_tables:
        return (
            "which writes no table directly: only operators of the platform do",
            "Add `write_mode: buffered`, or set `storage: s3`.",
        )
    return None


def _derive_schema(draft: Draft, entry: PublishDraft) -> None:
    """Give a table that an operator writes directly the columns that the operator has."""
    record = entry.record
    if entry.buffered or record.bad("write_mode") or record.get("storage") not in ("postgres", "live"):
        return
    writers = [writer for writer in entry.writers if _fills_tables(draft, writer.job)]
    if len(writers) != 1:
        if entry.live and len(entry.writers) == len(record.get("from", ())):
            message = f"One job writes the table of {shown(entry.name)}; here are {len(writers)} that write tables."
            record.at("from").problem("several_sources", message, "Name one `block_follower`.")
        return
    (writer,) = writers
    made_by = draft.by_name[writer.job]
    operator = CATALOGUE[made_by.record.get("operator")]
    config = made_by.config(operator)
    schema = None if config is None else config.table(writer.output_index)
    if config is None or schema is None:
        return
    if config.seals_units != entry.live:
        seals = "makes files of final blocks" if config.seals_units else "keeps all blocks in the table"
        hint = "Set `storage: live`." if config.seals_units else "Set `storage: postgres`, or add `config.unit_blocks`."
        message = f"Job `{writer.job}` {seals}, which {shown(entry.name)} does not."
        record.at("storage").problem("operator_storage", message, hint)
    if record.has("schema"):
        message = f"The columns of {shown(entry.name)} are those that `{made_by.record.get('operator')}` writes."
        record.at("schema").problem("invalid_value", message, "Leave it out.")
    entry.schema = schema


def _fills_tables(draft: Draft, job: str) -> bool:
    operator = CATALOGUE.get(draft.by_name[job].record.get("operator", ""))
    return operator is not None and operator.fills_tables


def _check_writers(draft: Draft, entry: PublishDraft) -> None:
    for name, place in zip(entry.record.get("writers", ()), entry.record.at("writers").items(), strict=False):
        if name == draft.name:
            place.problem("invalid_value", "A DAG needs no grant for a dataset of its own.", "Leave it out.")


def _check_version_column(entry: PublishDraft) -> None:
    """Check that `on_conflict: {newest: column}` names a declared column that every row has and that has an order."""
    _, newest = entry.record.get("on_conflict", ("update", None))
    if newest is None or entry.schema is None:
        return
    name: str = newest.values["newest"]
    place, column = newest.at("newest"), entry.schema.column(name)
    if column is None:
        check_column(name, place, entry.record.values["schema"].values["columns"])
    elif column.type not in ORDERED_TYPES:
        kinds = ", ".join(sorted(ORDERED_TYPES))
        message = f"The newest row is the one with the highest {shown(name)}, but {column.type} has no such order."
        place.problem("invalid_value", message, f"Name a column of a number or time: {kinds}.")
    elif column.nullable:
        message = f"The newest row is the one with the highest {shown(name)}, which may be null."
        place.problem("invalid_value", message, "Add `nullable: false` to the column.")


def _check_shape(entry: PublishDraft) -> None:
    record = entry.record
    schema = record.get("schema")
    if schema is not None:
        check_schema(schema)
        entry.schema = build_schema(schema)
    if record.bad("write_mode"):
        return
    if record.get("storage") == "none" and record.has("schema"):
        message = "A dataset of events has no rows, and so no schema."
        record.at("schema").problem("invalid_value", message, "Leave it out, or choose where its rows live.")
    if not entry.buffered:
        for name in ("on_conflict", "on_change", "max_queue_depth", "max_queue_age", "writers"):
            if record.has(name):
                message = f"Only a buffered dataset has `{name}`."
                record.at(name).problem("invalid_value", message, "Leave it out, or set `write_mode: buffered`.")
        return
    _check_version_column(entry)
    columns = None if schema is None else schema.get("columns")
    for name, column in () if columns is None else columns.records.items():
        if name.lower() in RESERVED | SYSTEM:
            message = f"A buffered dataset has a column {shown(name)} of its own."
            column.at("name").problem("reserved_column", message, "Leave it out, or name it otherwise.")
    if schema is not None and len(schema.get("unique") or ()) > MAX_UNIQUE:
        message = f"The key of a buffered dataset has at most {MAX_UNIQUE} columns."
        schema.at("unique").problem("out_of_range", message)
    if record.get("storage") in ("s3", "live", "none"):
        record.at("write_mode").problem(
            "buffered_storage", "Only a dataset in postgres can be buffered.", "Set `storage: postgres`."
        )
    elif not record.bad("schema") and (schema is None or (not schema.bad("unique") and not schema.get("unique"))):
        place = record.at("write_mode") if schema is None else schema.place
        hint = "Add `schema` with `columns` and `unique`." if schema is None else "Add `unique`."
        place.problem("buffered_needs_unique", "A buffered dataset merges rows on `schema.unique`.", hint)
