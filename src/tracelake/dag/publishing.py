"""The `publish` map: names for outputs, who owns them, how they are written."""

from tracelake.catalogue import CATALOGUE
from tracelake.catalogue.tables import MAX_UNIQUE, RESERVED, SYSTEM
from tracelake.dag.columns import build_schema, check_schema
from tracelake.dag.draft import Draft, PublishDraft
from tracelake.dag.edges import resolve_output
from tracelake.dag.fields import MAX_DATASETS, PUBLISH
from tracelake.dag.kinds import INVALID, NAME, Place, Record
from tracelake.dag.nodes import MapNode
from tracelake.dag.problems import shown
from tracelake.dag.surroundings import kept_as
from tracelake.model.runtime import DISPATCHER


def read_publish(draft: Draft) -> None:
    place: Place | None = draft.record.get("publish")
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
        if good_name:
            _check_owner(draft, entry)
        _check_shape(entry)
        draft.publish[name] = entry


def _check_owner(draft: Draft, entry: PublishDraft) -> None:
    known = draft.surroundings.datasets.get(entry.name)
    if known is None or draft.name is None:
        return
    if known.owner_dag != draft.name:
        owner = f"the DAG `{known.owner_dag}`" if known.owner_dag is not None else "jobs that no DAG made"
        entry.key.problem(
            "dataset_owned", f"The dataset {shown(entry.name)} belongs to {owner}.", "Choose another name."
        )
        return
    storage = _storage(draft, entry)
    if storage is not None and storage != known.storage:
        message = (
            f"The dataset {shown(entry.name)} has {kept_as(known.storage)}, which cannot become {kept_as(storage)}."
        )
        hint = "Publish under another name."
        if known.storage == "buffered" and storage == "postgres":
            hint = "Add `write_mode: buffered`, or publish under another name."
        entry.record.at("storage").problem("dataset_storage", message, hint)


def _storage(draft: Draft, entry: PublishDraft) -> str | None:
    """How the dataset would be kept; None when that cannot be told."""
    if not entry.writers or entry.record.bad("write_mode"):
        return None
    if all(draft.by_name[writer.job].only_emits for writer in entry.writers):
        return "none"  # events, and no rows
    storage: str | None = entry.record.get("storage")
    return "buffered" if entry.buffered else storage


def _resolve_writers(draft: Draft, entry: PublishDraft) -> None:
    records: list[Record] = [record for record in entry.record.get("from", ()) if record is not INVALID]
    if len(records) > 1 and not entry.buffered and not entry.record.bad("write_mode"):
        message = f"{shown(entry.name)} has {len(records)} writers, which only a buffered dataset can have."
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
    """Whether rows of the job can come to where the dataset is kept."""
    made_by = draft.by_name[job]
    operator = CATALOGUE.get(made_by.record.get("operator", ""))
    if operator is None or entry.record.get("storage") != "postgres" or entry.record.bad("write_mode"):
        return True
    runs, hint = f"Job `{job}` runs `{operator.name}`", ""
    if operator.only_files:
        message = f"{runs}, which writes files and hands no rows to a sink."
        hint = "Publish a `spark_sql` job that reads its output."
        if not entry.buffered:
            message, hint = f"{runs}, which writes files and no tables.", f"Set `storage: s3`, or: {hint}"
    elif entry.buffered and operator.only_events:
        message, hint = f"{runs}, which makes events and no rows.", "Name a job that makes rows."
    elif entry.buffered and made_by.setting("runtime") == DISPATCHER:
        message = f"Job `{job}` runs in the Dispatcher, which makes events and no rows."
        hint = "Run it on a runtime with workers."
    elif not entry.buffered and not operator.fills_tables:
        message = f"{runs}, which writes no tables by itself."
        hint = "Add `write_mode: buffered`, or set `storage: s3`."
    else:
        return True
    writer.place.problem("operator_storage", message, hint)
    return False


def _check_shape(entry: PublishDraft) -> None:
    record = entry.record
    schema = record.get("schema")
    if schema is not None:
        check_schema(schema)
        entry.schema = build_schema(schema)
    if record.bad("write_mode"):
        return
    if not entry.buffered:
        for name in ("on_conflict", "max_queue_depth", "max_queue_age"):
            if record.has(name):
                message = f"Only a buffered dataset has `{name}`."
                record.at(name).problem("invalid_value", message, "Leave it out, or set `write_mode: buffered`.")
        return
    columns = None if schema is None else schema.get("columns")
    for name, column in () if columns is None else columns.records.items():
        if name.lower() in RESERVED | SYSTEM:
            message = f"A buffered dataset has a column {shown(name)} of its own."
            column.at("name").problem("reserved_column", message, "Leave it out, or name it otherwise.")
    if schema is not None and len(schema.get("unique") or ()) > MAX_UNIQUE:
        message = f"The key of a buffered dataset has at most {MAX_UNIQUE} columns."
        schema.at("unique").problem("out_of_range", message)
    if record.get("storage") == "s3":
        record.at("write_mode").problem(
            "buffered_storage", "Only a dataset in postgres can be buffered.", "Set `storage: postgres`."
        )
    elif not record.bad("schema") and (schema is None or (not schema.bad("unique") and not schema.get("unique"))):
        place = record.at("write_mode") if schema is None else schema.place
        hint = "Add `schema` with `columns` and `unique`." if schema is None else "Add `unique`."
        place.problem("buffered_needs_unique", "A buffered dataset merges rows on `schema.unique`.", hint)
