"""The fields of the language: kind, limits and help of each. The reader and the JSON Schema both use this table."""

from tracelake.catalogue import document_operators
from tracelake.dag.check_fields import DATASET_CHECKS, JOB_CHECKS
from tracelake.dag.columns import COLUMN_NAME, MAX_COLUMNS, SCHEMA
from tracelake.dag.kinds import (
    INDEX,
    INVALID,
    NAME,
    POSITIVE,
    REFERENCE,
    SECONDS_MAX,
    Boolean,
    Choice,
    DocumentPlace,
    Duration,
    Field,
    Fields,
    FreeMap,
    Integer,
    JsonSchema,
    ListOf,
    OneOrMany,
    PositiveNumber,
    Text,
)
from tracelake.dag.nodes import MapNode
from tracelake.dag.where import WhereKind
from tracelake.model.dag import DOCUMENT_STRATEGIES, Activation, CatchUp, SourceKind
from tracelake.model.dag import SECRET_NAME as SECRET
from tracelake.model.windows import MOST_LOOKBACK

MAX_JOBS = 1000
MAX_DATASETS = 1000
MAX_INPUTS = 64
MAX_OUTPUTS = 64
MAX_WRITERS = 64
_YEAR = 365 * 24 * 3600

WEBHOOK_PATH = Text(
    "a webhook path",
    "/?[a-z0-9][a-z0-9_-]*(?:/[a-z0-9][a-z0-9_-]*)*",
    200,
    "A path is lower-case words of letters, digits, _ and -, joined by slashes: `alerts/exchange-1`.",
    code="webhook_path_invalid",
)
SECRET_NAME = Text("a secret's name", SECRET, 128, "Like `RPC_URL`.")
BUNDLE_ID = Text("a bundle id", "[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}", 200, "Use the id that the upload answered with.")
COLUMN = Text("a column", "[A-Za-z_][A-Za-z0-9_]{0,62}", 63)
DESCRIPTION = Text("a description", max_length=2000)
ENTRYPOINT = Text("an entrypoint", "[A-Za-z0-9_][A-Za-z0-9_./:-]{0,199}", 200, "Like `module.function`.")


class OperatorKind(Text):
    """Any text when it is read, so that an unknown operator gets a code of its own; an enum for editors."""

    def schema(self) -> JsonSchema:
        return {"enum": sorted(document_operators())}


class ConflictKind:
    """`update`, `nothing`, or `{newest: column}`; reads as the word and the place of the column, if there is one."""

    _words = Choice(("update", "nothing"))
    _newest = Fields(
        {"newest": Field(COLUMN, "The column whose highest value stays; never null.", required=True)},
        "`update`, `nothing` or a map `{newest: column}`",
    )

    def read(self, place: DocumentPlace) -> object:
        if not isinstance(place.node, MapNode):
            word = self._words.read(place)
            return INVALID if word is INVALID else (word, None)
        record = self._newest.read(place)
        return ("newest", record) if "newest" in record.values else INVALID

    def schema(self) -> JsonSchema:
        return {"anyOf": [self._words.schema(), self._newest.schema()]}


class PublishKind:
    """A map of dataset name to entry."""

    def read(self, place: DocumentPlace) -> object:
        return place

    def schema(self) -> JsonSchema:
        return {
            "type": "object",
            "propertyNames": NAME.schema(),
            "additionalProperties": PUBLISH.schema(),
            "maxProperties": MAX_DATASETS,
        }


class DescriptionsKind:
    """A map of column name to description."""

    def read(self, place: DocumentPlace) -> object:
        if not isinstance(place.node, MapNode):
            return place.wrong_type("a map of column to description", "Write `columns: {amount: Tokens sent.}`.")
        if len(place.node.entries) > MAX_COLUMNS:
            place.problem("out_of_range", f"{place.title} takes at most {MAX_COLUMNS} columns.")
            return INVALID
        entries = place.entries()
        read = {name: (COLUMN_NAME.read(key), DESCRIPTION.read(value)) for name, (key, value) in entries.items()}
        if any(INVALID in pair for pair in read.values()):
            return INVALID
        return {name: text for name, (_, text) in read.items()}

    def schema(self) -> JsonSchema:
        return {
            "type": "object",
            "propertyNames": COLUMN_NAME.schema(),
            "additionalProperties": DESCRIPTION.schema(),
            "maxProperties": MAX_COLUMNS,
        }


OUTPUT = Fields(
    {
        "job": Field(REFERENCE, "The job of this DAG whose output it is.", required=True),
        "output_index": Field(INDEX, "Which of its outputs, counted from 0.", default=0),
    },
    "an output: {job, output_index}",
)

FROM = Fields(
    {
        "job": Field(REFERENCE, "A job of this DAG."),
        "output_index": Field(INDEX, "Which output of the job, counted from 0.", default=0),
        "dataset": Field(REFERENCE, "A published dataset, of this DAG or of another one."),
    },
    "a map: {job, output_index} or {dataset}",
    lambda: {"oneOf": [{"required": ["job"]}, {"required": ["dataset"]}]},
)

INPUT = Fields(
    {
        "from": Field(FROM, "What it reads: an output of a job, or a dataset."),
        "self": Field(Choice(("previous",)), "Instead of `from`: the unit before, of the job's own output."),
        "output_index": Field(INDEX, "Of `self`: which output of the job, counted from 0.", default=0),
        "where": Field(WhereKind(), "Only these rows: field to value, or to a list of values, all of which must hold."),
        "read": Field(
            Choice(("unit", "window", "history", "all", "latest")),
            "How much of it a task reads: its own unit; all units that overlap it; everything up to its end; all of "
            "the dataset; the newest unit up to its end. Jobs with `units` read windows unless they say otherwise.",
            default="unit",
        ),
        "lookback": Field(
            Integer(0, MOST_LOOKBACK), "Of `read: window`: how many grains before the unit are read too.", default=0
        ),
        "by": Field(
            COLUMN, "The column (a time, or a block number) by which rows belong to a window; others are left out."
        ),
        "columns": Field(FreeMap(), "Of `self`: the columns that the first unit reads, without rows: name to type."),
    },
    "an input: {from: ...}",
    lambda: {"oneOf": [{"required": ["from"]}, {"required": ["self"]}]},
)

UNITS = Fields(
    {
        "by": Field(Choice(("blocks", "time")), "What its units are ranges of.", required=True),
        "size": Field(Integer(1, 2**40), "Of blocks: how many a unit has."),
        "grain": Field(Choice(("hour", "day", "week", "month")), "Of time: how long a unit is."),
        "time_zone": Field(
            Text("a time zone", max_length=64), "Of time: whose days they are, like Europe/Berlin.", default="UTC"
        ),
        "when": Field(
            Choice(("complete", "updated")),
            "complete: a unit is computed once its inputs cover it and have passed its end. updated: as they grow.",
            default="complete",
        ),
    },
    "the units of a job: {by: blocks, size} or {by: time, grain}",
)

SOURCE = Fields(
    {
        "kind": Field(Choice(tuple(SourceKind)), "What makes it emit.", required=True),
        "schedule": Field(Text("a schedule", max_length=500), "Of cron: [second] minute hour day month weekday."),
        "time_zone": Field(
            Text("a time zone", max_length=64), "Of cron: whose clock it goes by, like Europe/Berlin.", default="UTC"
        ),
        "catch_up": Field(
            Choice(tuple(CatchUp)),
            "Of cron: which of the times that were missed are made up for: none, the last one, or all.",
            default="last",
        ),
        "webhook_path": Field(WEBHOOK_PATH, "Of webhook: the end of the address that is called."),
        "unit": Field(
            Choice(("body", "delivery")),
            "Of webhook: body: a body may name the unit of its event. delivery: each delivery is a unit of its own.",
            default="body",
        ),
    }
)

UDF = Fields(
    {
        "bundle_id": Field(BUNDLE_ID, "The uploaded bundle.", required=True),
        "entrypoint": Field(ENTRYPOINT, "The function in it; Rust bundles need none."),
        "memory_mb": Field(Integer(64, 65_536), "Memory of one attempt, in MiB. The stack has a default and a limit."),
    }
)

SCALING = Fields({"max_concurrency": Field(Integer(1, 100_000), "How many tasks may run at once; no limit otherwise.")})
BOOTSTRAP = Fields(
    {"reset_outputs": Field(Boolean(), "Outputs start anew when a version is activated first.", default=False)}
)

SHARED_FIELDS = {
    "runtime": Field(Text("a runtime", "[a-z][a-z0-9_-]{0,63}", 64), "Where its tasks run."),
    "execution_strategy": Field(
        Choice(DOCUMENT_STRATEGIES),
        "PerUpdate: a task per event of any input. PerPartition: a task per unit that all inputs have.",
        default="PerUpdate",
    ),
    "update_strategy": Field(
        Choice(("append", "replace")),
        "replace: a task's output takes the place of its unit's. append: a sink merges its rows on unique_key.",
        default="replace",
    ),
    "timeout_seconds": Field(Duration(1, SECONDS_MAX), "How long an attempt may take. The runtime has a default."),
    "heartbeat_timeout_seconds": Field(
        Duration(1, SECONDS_MAX), "How long an attempt may be silent. The stack has a default."
    ),
    "max_attempts": Field(Integer(1, 1000), "How often a task is tried. The stack has a default."),
    "priority": Field(Choice(("normal", "bulk")), "bulk work gives way first when queues fill.", default="normal"),
    "max_queue_depth": Field(POSITIVE, "Queued tasks at which what feeds this job pauses; no limit otherwise."),
    "max_queue_age": Field(Duration(1, _YEAR), "Age of the oldest queued task at which what feeds this job pauses."),
    "scaling": Field(SCALING, "Limits on how much runs at once."),
}
"""Fields of a job that `defaults` may set for all jobs."""

_NOT_SUPPORTED = {
    "idle_timeout": "Leave it out: workers serve all jobs of their runtime and do not end when one of them has no work."
}
"""Fields of other systems that documents may contain, and why they are refused."""

DEFAULTS = Fields(SHARED_FIELDS, not_supported=_NOT_SUPPORTED)

JOB = Fields(
    {
        "name": Field(NAME, "Name of the job, once in the DAG.", required=True),
        "activation": Field(
            Choice(tuple(Activation)), "source: it begins something. reactive: its inputs start it.", required=True
        ),
        "operator": Field(OperatorKind("an operator", max_length=200), "What its tasks do."),
        "outputs": Field(Integer(0, MAX_OUTPUTS), "How many outputs it has.", default=1),
        "inputs": Field(ListOf(INPUT, 0, MAX_INPUTS, whole=False), "What it reads, in the order its tasks see."),
        "unique_key": Field(
            ListOf(COLUMN, 0, 32, distinct=True),
            "The columns that tell rows apart, as `schema.unique` of its published outputs; needed for append.",
        ),
        "units": Field(UNITS, "The units that it computes, instead of those of its inputs."),
        "source": Field(SOURCE, "Of a source: what makes it emit."),
        "config": Field(FreeMap(), "Settings of the operator."),
        "udf": Field(UDF, "Of operator udf: the function to run."),
        "secrets": Field(ListOf(SECRET_NAME, 0, 64, distinct=True), "Names of secrets that its tasks get."),
        "bootstrap": Field(BOOTSTRAP, "What happens when a version is activated first."),
        "checks": Field(JOB_CHECKS, "What must hold for the rows of its outputs before they are committed."),
        **SHARED_FIELDS,
    },
    "a job",
    not_supported=_NOT_SUPPORTED,
)

PUBLISH = Fields(
    {
        "from": Field(
            OneOrMany(ListOf(OUTPUT, 1, MAX_WRITERS, whole=False)),
            "The output that the name stands for; a list for a buffered or a live dataset.",
            required=True,
        ),
        "storage": Field(
            Choice(("postgres", "s3", "live", "none")),
            "Where its rows are: in a table (postgres), in files (s3), or in files up to a boundary and in a table "
            "above it (live); none: it is events without rows.",
            required=True,
        ),
        "write_mode": Field(
            Choice(("buffered", "direct")),
            "direct: tasks write it. buffered: tasks hand rows to a sink, which merges them (postgres alone).",
            default="direct",
        ),
        "schema": Field(SCHEMA, "What its rows look like."),
        "on_conflict": Field(
            ConflictKind(),
            "Of a buffered dataset, when rows have the same `unique` values: the last one published stays (update), "
            "or the first one (nothing), or the one with the highest value of a column ({newest: column}).",
            default="update",
        ),
        "on_change": Field(
            Choice(("rebuild", "keep")),
            "Of a buffered dataset, when a job that writes it changes: its new rows are built beside the old ones and "
            "take their place at the cutover (rebuild), or the old ones stay in the table as well (keep).",
            default="rebuild",
        ),
        "writers": Field(
            ListOf(NAME, 0, MAX_WRITERS, distinct=True),
            "Other DAGs that may write to it, if it is buffered: they publish it too, without declaring what it is.",
        ),
        "max_queue_depth": Field(POSITIVE, "Batches of a buffered dataset that wait at which its writers pause."),
        "max_queue_age": Field(Duration(1, _YEAR), "Age of the oldest such batch at which its writers pause."),
        "description": Field(DESCRIPTION, "What it holds, for its readers."),
        "owner": Field(Text("an owner", max_length=200), "Who answers for it: a team, a person, an address."),
        "columns": Field(DescriptionsKind(), "What its columns hold: map of column name to description."),
        "checks": Field(DATASET_CHECKS, "What must hold for its rows before they are committed."),
    },
    "a published dataset: {from, storage}",
)

CHAIN_TABLES = ("blocks", "transactions", "logs")

CHAIN = Fields(
    {
        "name": Field(NAME, "What the names of its jobs begin with.", required=True),
        "chain_id": Field(Integer(1, 2**63 - 1), "The chain id that the nodes must report.", required=True),
        "rpc": Field(Text("a name", max_length=64), "Name of the endpoints of its nodes.", default="default"),
        "start": Field(Integer(0, 2**32 - 1), "The first block; the head without it."),
        "publish": Field(
            Fields({table: Field(NAME, f"Name of the dataset of {table}.") for table in CHAIN_TABLES}),
            "The tables that are read, with the names of their datasets; all three, each by its own name, without it.",
        ),
        "unit_blocks": Field(Integer(1, 1_000_000), "How many blocks a unit of files has.", default=1000),
        "finality_depth_blocks": Field(
            Integer(1, 10_000), "Blocks this far below the head are final and become files.", default=64
        ),
        "max_reorg_depth": Field(
            Integer(1, 10_000),
            "The most blocks that a reorganisation may replace; those that are not final by default.",
        ),
        "poll_max_seconds": Field(
            Integer(1, 3600), "The longest time between two looks at the head, in seconds.", default=15
        ),
        "columns": Field(FreeMap(), "By table, optional columns, as of evm_ingest."),
        "filter": Field(FreeMap(), "Only logs of these contracts or topics, with the headers of all blocks."),
        "chain_kind": Field(Text("a kind of chain", max_length=64), "The kind of chain, as of evm_ingest."),
        "log_index": Field(Choice(("strict", "renumber", "as_given")), "Numbers of logs, as of evm_ingest."),
        "phantom_transactions": Field(Choice(("fail", "drop")), "Transactions without a receipt, as of evm_ingest."),
        "missing_fields": Field(
            Choice(("fail", "null")), "Fields missing from transactions of other types, as of evm_ingest."
        ),
        "verify": Field(Choice(("hashes", "roots")), "How answers are verified, as of evm_ingest.", default="hashes"),
        "batch_size": Field(Integer(1, 1000), "The most calls in one HTTP request.", default=20),
        "max_requests_per_second": Field(
            PositiveNumber(1_000_000), "Limit per node, for the head and for each unit of history; a batch is one."
        ),
        "max_calls_per_second": Field(
            PositiveNumber(1_000_000),
            "Limit per node, for the head and for each unit of history; a batch counts all.",
        ),
        "retry_seconds": Field(
            Integer(1, 86_400), "How long nodes are retried before an attempt fails, as of the operators."
        ),
        "chunk_blocks": Field(
            Integer(1, 100_000), "Blocks whose rows go into one file; 250 by default, with a filter a whole unit."
        ),
        "checks": Field(DATASET_CHECKS, "Checks of its blocks: `freshness`."),
        "runtime": Field(Text("a runtime", "[a-z][a-z0-9_-]{0,63}", 64), "Where its jobs run."),
    },
    "a chain: {name, chain_id}",
)

DOCUMENT = Fields(
    {
        "name": Field(NAME, "Name of the DAG, once in the org.", required=True),
        "defaults": Field(DEFAULTS, "Fields for every job that does not say otherwise."),
        "chains": Field(
            ListOf(CHAIN, 1, 16, whole=False),
            "Chains that are read from a first block to the head and followed there.",
        ),
        "jobs": Field(ListOf(JOB, 1, MAX_JOBS, whole=False), "The jobs; a document has these or `chains`, or both."),
        "publish": Field(PublishKind(), "Outputs that have a name: map of dataset name to entry."),
    },
    "a map with `name` and `jobs`",
    rule=lambda: {"anyOf": [{"required": ["jobs"]}, {"required": ["chains"]}]},
)
