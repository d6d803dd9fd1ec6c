"""Expands the `chains` of a document: a chain from its first block to its head is four jobs and its datasets.

- `NAME_head` follows the head into tables.
- `NAME_ranges` cuts what lies before the tables into units, and `NAME_history` reads these into files.
- `NAME_compact` makes files of units that are final.

All write the same live datasets. The tree of the document gets these jobs as if they were written there, so everything
behind this point knows jobs and datasets alone. Values that an author wrote keep their places for problems.
"""

from collections.abc import Mapping, Sequence
from types import NoneType

from tracelake.catalogue.evm_columns import EVM_TABLES
from tracelake.dag.fields import CHAIN, CHAIN_TABLES
from tracelake.dag.kinds import INVALID, DocumentPlace, Record
from tracelake.dag.nodes import ListNode, MapNode, ScalarNode, YamlNode
from tracelake.dag.problems import ProblemList, shown

UNIT_BLOCKS = 1000
_RUNTIME = "ecs_platform"
_FILTERED_TABLES = ("blocks", "logs")
_FILTERED_CHUNK = 10_000
"""Blocks of a file where only some logs are read: more than a usual unit has."""
_READING = (
    "chain_id",
    "rpc",
    "columns",
    "chain_kind",
    "log_index",
    "phantom_transactions",
    "missing_fields",
    "verify",
    "batch_size",
    "max_requests_per_second",
    "max_calls_per_second",
    "retry_seconds",
)
"""Settings that say how nodes are read: the same for the head and for history."""


def expand_chains(root: YamlNode, problems: ProblemList) -> bool:
    """Adds the jobs and datasets of all chains to the document. False if one of them is invalid: reading the document
    reports it."""
    if not isinstance(root, MapNode) or "chains" not in root.entries:
        return True
    chains = root.entries["chains"][1]
    jobs, publish = (root.entries[name][1] if name in root.entries else None for name in ("jobs", "publish"))
    if not isinstance(chains, ListNode) or not isinstance(jobs, ListNode | NoneType):
        return False
    if not isinstance(publish, MapNode | NoneType):
        return False
    for index, node in enumerate(chains.items):
        own_problems = ProblemList()
        record = CHAIN.read(DocumentPlace(node, f"chains[{index}]", own_problems))
        if record is INVALID or own_problems:
            return False
        _Expansion(root, record).add(problems)
    return True


class _Expansion:
    def __init__(self, root: MapNode, chain: Record) -> None:
        self._root = root
        self._chain = chain
        self._place = chain.place.node
        self._name: str = chain.values["name"]
        names: Record | None = chain.get("publish")
        usual_tables = _FILTERED_TABLES if chain.has("filter") else EVM_TABLES
        datasets_by_table = dict.fromkeys(usual_tables) if names is None else names.values
        self._tables = [table for table in EVM_TABLES if table in datasets_by_table]
        self._datasets = {table: datasets_by_table[table] or table for table in self._tables}

    def add(self, problems: ProblemList) -> None:
        if self._chain.has("filter") and {*self._tables} != {*_FILTERED_TABLES}:
            place = DocumentPlace(self._chain.at("publish").node, self._chain.place.below("publish"), problems)
            message = "With a filter there are logs, and all blocks."
            place.problem("invalid_value", message, "Publish `blocks` and `logs`, and nothing else.")
            return
        jobs = self._list_at("jobs")
        jobs.items += [self._head(), self._ranges(), self._history(), self._compact()]
        publish = self._map_at("publish")
        for index, (table, dataset) in enumerate(self._datasets.items()):
            writers = [self._output(job, index) for job in ("head", "history", "compact")]
            entry = self._map({"from": self._items(writers), "storage": self._text("live")})
            if index == 0 and self._chain.has("checks"):
                entry.entries["checks"] = (self._text("checks"), self._chain.at("checks").node)
            key = self._at("publish", table, dataset)
            if dataset in publish.entries:
                place = DocumentPlace(key, self._chain.place.below("publish"), problems)
                message = (
                    f"The document publishes {shown(dataset)} already, in line {publish.entries[dataset][0].line}."
                )
                place.problem("duplicate_publish", message, f"Name it otherwise: `publish: {{{table}: ...}}`.")
                continue
            publish.entries[dataset] = (key, entry)

    # --- jobs

    def _head(self) -> MapNode:
        tables = len(self._tables)
        config = self._config(
            *_READING, "filter", "start", "finality_depth_blocks", "max_reorg_depth", "poll_max_seconds"
        )
        config["unit_blocks"] = self._unit_blocks()
        return self._job(
            "head",
            "block_follower",
            {
                "activation": self._text("source"),
                "source": self._map({"kind": self._text("always_on")}),
                "outputs": self._number(tables + 2),
                "config": self._map(config),
            },
        )

    def _ranges(self) -> MapNode:
        config = {"size": self._unit_blocks(), "align": self._text("true")}
        return self._job(
            "ranges",
            "range_splitter",
            {
                "activation": self._text("reactive"),
                "runtime": self._text("dispatcher"),
                "config": self._map(config),
                "inputs": self._inputs("head", len(self._tables)),
            },
        )

    def _history(self) -> MapNode:
        config = self._config(*_READING)
        log_filter = self._chain.at("filter").node if self._chain.has("filter") else None
        if isinstance(log_filter, MapNode):
            # Tables have all blocks, so files do too.
            own = {"blocks": self._text("all"), "chunk_blocks": self._chunk_blocks()}
            entries = {key: (self._text(key), value) for key, value in own.items()}
            config["filter"] = MapNode(log_filter.line, log_filter.column, entries=log_filter.entries | entries)
        elif self._chain.has("chunk_blocks"):
            config["chunk_blocks"] = self._chunk_blocks()
        return self._job("history", "evm_ingest", self._files("ranges", 0, config))

    def _compact(self) -> MapNode:
        config = self._config("columns")
        if self._chain.has("filter") or self._chain.has("chunk_blocks"):
            config["chunk_blocks"] = self._chunk_blocks()
        return self._job("compact", "parquet_compact", self._files("head", len(self._tables) + 1, config))

    def _chunk_blocks(self) -> YamlNode:
        has_own = self._chain.has("chunk_blocks")
        return self._chain.at("chunk_blocks").node if has_own else self._number(_FILTERED_CHUNK)

    def _files(self, job: str, output_index: int, config: Mapping[str, YamlNode]) -> dict[str, YamlNode]:
        return {
            "activation": self._text("reactive"),
            "execution_strategy": self._text("PerPartition"),
            "inputs": self._inputs(job, output_index),
            "outputs": self._number(len(self._tables)),
            "config": self._map(config),
        }

    def _job(self, name: str, operator: str, fields: Mapping[str, YamlNode]) -> MapNode:
        fields_of_job = {"name": self._text(f"{self._name}_{name}"), "operator": self._text(operator), **fields}
        fields_of_job.setdefault("runtime", self._text(self._chain.get("runtime") or self._default_runtime()))
        return self._map(fields_of_job)

    def _default_runtime(self) -> str:
        defaults = self._root.entries.get("defaults")
        runtime = defaults[1].entries.get("runtime") if defaults and isinstance(defaults[1], MapNode) else None
        return runtime[1].text if runtime and isinstance(runtime[1], ScalarNode) else _RUNTIME

    def _config(self, *names: str) -> dict[str, YamlNode]:
        """The settings of the chain that an operator takes too."""
        config = {name: self._chain.at(name).node for name in names if self._chain.has(name)}
        if self._tables != list(EVM_TABLES):
            config["tables"] = self._items([self._text(table) for table in self._tables])
        return config

    def _unit_blocks(self) -> YamlNode:
        return self._chain.at("unit_blocks").node if self._chain.has("unit_blocks") else self._number(UNIT_BLOCKS)

    def _inputs(self, job: str, output_index: int) -> ListNode:
        return self._items([self._map({"from": self._output(job, output_index)})])

    def _output(self, job: str, output_index: int) -> MapNode:
        return self._map({"job": self._text(f"{self._name}_{job}"), "output_index": self._number(output_index)})

    # --- nodes, at the place of the chain

    def _at(self, field: str, key: str, text: str) -> YamlNode:
        record: Record | None = self._chain.get(field)
        place = self._place if record is None or not record.has(key) else record.at(key).node
        return ScalarNode(place.line, place.column, text=text)

    def _text(self, text: str) -> ScalarNode:
        return ScalarNode(self._place.line, self._place.column, text=text, plain=True)

    def _number(self, number: int) -> ScalarNode:
        return self._text(str(number))

    def _map(self, entries: Mapping[str, YamlNode]) -> MapNode:
        line, column = self._place.line, self._place.column
        return MapNode(line, column, entries={key: (self._text(key), value) for key, value in entries.items()})

    def _items(self, items: Sequence[YamlNode]) -> ListNode:
        return ListNode(self._place.line, self._place.column, items=list(items))

    def _list_at(self, key: str) -> ListNode:
        entry = self._root.entries.get(key)
        if entry is None or not isinstance(entry[1], ListNode):
            entry = self._root.entries[key] = (self._text(key), self._items([]))
        node = entry[1]
        assert isinstance(node, ListNode)
        return node

    def _map_at(self, key: str) -> MapNode:
        entry = self._root.entries.get(key)
        if entry is None or not isinstance(entry[1], MapNode):
            entry = self._root.entries[key] = (self._text(key), self._map({}))
        node = entry[1]
        assert isinstance(node, MapNode)
        return node


assert set(CHAIN_TABLES) == set(EVM_TABLES)
