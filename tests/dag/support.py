"""What the tests of the language share: surroundings, and documents with a mark where the problem is."""

from tracelake.dag import DagInvalidError, KnownBundle, KnownDataset, Surroundings, read_dag
from tracelake.model.dag import Column, ColumnType, Dag, Problem, Schema
from tracelake.model.runtime import BUILT_IN

MARK = "§"

ALERTS = Schema(
    columns=(
        Column(name="id", type=ColumnType.TEXT, nullable=False, max_length=10),
        Column(name="severity", type=ColumnType.TEXT, enum=("critical", "low")),
        Column(name="block", type=ColumnType.INT64),
        Column(name="small", type=ColumnType.INT16, nullable=False),
        Column(name="amount", type=ColumnType.UINT256),
        Column(name="price", type=ColumnType.DECIMAL, precision=38, scale=18),
        Column(name="ratio", type=ColumnType.FLOAT64),
        Column(name="open", type=ColumnType.BOOL),
        Column(name="hash", type=ColumnType.BYTES),
        Column(name="at", type=ColumnType.TIMESTAMP),
        Column(name="day", type=ColumnType.DATE),
        Column(name="extra", type=ColumnType.JSON),
    )
)

SURROUNDINGS = Surroundings(
    runtimes=BUILT_IN,
    datasets={
        "alert_events": KnownDataset(owner_dag="alerts", schema=ALERTS, storage="postgres"),
        "hot_rows": KnownDataset(owner_dag="alerts", schema=None, storage="buffered"),
        "raw_blocks": KnownDataset(owner_dag="chain", schema=None, storage="s3"),
        "loose": KnownDataset(owner_dag=None, schema=None, storage="none"),
        "granted": KnownDataset(owner_dag="alerts", schema=ALERTS, storage="buffered", writers=frozenset({"d", "e"})),
        "mine_s3": KnownDataset(owner_dag="d", schema=None, storage="s3"),
        "mine_ticks": KnownDataset(owner_dag="d", schema=None, storage="none"),
    },
    bundles={
        "py": KnownBundle("python"),
        "js": KnownBundle("node"),
        "rs": KnownBundle("rust"),
        "off": KnownBundle("rust", enabled=False),
        "one": KnownBundle("python", "trace.handler"),
    },
)

HEAD = "name: d\njobs:\n"
TICK = "- {name: tick, activation: source, source: {kind: manual}}\n"
WORK = "- {name: work, activation: reactive, runtime: ecs_platform, operator: noop, inputs: [{from: {job: tick}}]}\n"
GOOD = HEAD + TICK + WORK


def read(text: str | bytes, surroundings: Surroundings = SURROUNDINGS) -> Dag:
    return read_dag(text.encode() if isinstance(text, str) else text, surroundings)


def problems_of(text: str | bytes, surroundings: Surroundings = SURROUNDINGS) -> list[Problem]:
    try:
        read(text, surroundings)
    except DagInvalidError as error:
        return error.problems
    return []


def marked(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without its marks, and the line and column of each."""
    places = []
    plain = ""
    for character in text:
        if character == MARK:
            places.append((plain.count("\n") + 1, len(plain) - (plain.rfind("\n") + 1) + 1))
        else:
            plain += character
    return plain, places
