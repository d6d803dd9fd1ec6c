"""Columns that are known when a document is read: where they come from, and where mistakes in queries are."""

from typing import Any

import pytest
import yaml

from tests.dag.support import SURROUNDINGS, problems_of
from tracelake.dag import KnownDataset, Surroundings, read_typed_dag
from tracelake.dag.text_positions import RawScalar
from tracelake.model.columns import DatasetColumn, DatasetColumns
from tracelake.model.runtime import BUILT_IN

LOGS = {"job": "ingest", "output_index": 2}


def sql(name: str, query: str, *inputs: dict[str, Any], **config: Any) -> dict[str, Any]:
    names = {f"t{index}": index for index in range(len(inputs))}
    return {
        "name": name,
        "activation": "reactive",
        "runtime": "ecs_platform",
        "operator": "spark_sql",
        "inputs": [{"from": item} for item in inputs],
        "config": {"query": query, "inputs": names, **config},
        "execution_strategy": "PerPartition",
    }


def document(*jobs: dict[str, Any], **publish: Any) -> str:
    ask = {"name": "ask", "activation": "source", "source": {"kind": "manual"}}
    ingest = {"name": "ingest", "outputs": 3, "operator": "evm_ingest", "config": {"chain_id": 1}}
    common = {"activation": "reactive", "runtime": "ecs_platform", "inputs": [{"from": {"job": "ask"}}]}
    return yaml.safe_dump({"name": "d", "jobs": [ask, common | ingest, *jobs], "publish": publish}, sort_keys=False)


def columns_of(text: str, surroundings: Surroundings = SURROUNDINGS) -> dict[str, str]:
    """Columns with their types by output, as text; `...` where there may be others."""
    return {
        f"{item.output.job}.{item.output.output_index}": ", ".join(
            [f"{column.name} {column.type}" for column in item.columns.columns]
            + ([] if item.columns.complete else ["..."])
        )
        for item in read_typed_dag(text.encode(), surroundings).columns
    }


def test_columns_follow_from_operators_and_queries() -> None:
    text = document(
        {
            "name": "decode",
            "activation": "reactive",
            "runtime": "ecs_platform",
            "operator": "decode_logs",
            "outputs": 2,
            "inputs": [{"from": LOGS}],
            "config": {"events": ["Sync(uint112 reserve0, uint64 at, (bool a, bytes b)[] parts)"]},
        },
        sql("flows", "SELECT block_number, reserve0_f64 * 2 AS twice, parts[0].b AS part FROM t0", {"job": "decode"}),
        sql("sums", "SELECT *, sum(twice) OVER () AS total, ${start} AS first FROM t0", {"job": "flows"}),
    )
    known = columns_of(text)
    assert known["decode.0"] == (
        "block_number bigint, transaction_index bigint, log_index bigint, transaction_hash binary, address binary, "
        "chain_id decimal(20,0), event string, reserve0_binary binary, reserve0_string string, reserve0_f64 double, "
        "at decimal(20,0), parts array<struct<a:boolean,b:binary>>"
    )
    assert known["decode.1"].endswith("data binary, chain_id decimal(20,0), reason string, detail string")
    assert known["flows.0"] == "block_number bigint, twice double, part binary"
    assert known["sums.0"] == "block_number bigint, twice double, part binary, total double, first unknown"


def test_datasets_of_other_dags_and_tables() -> None:
    recorded = DatasetColumns(columns=(DatasetColumn(name="block_number", type="bigint"), DatasetColumn(name="odd")))
    surroundings = Surroundings(
        runtimes=BUILT_IN,
        datasets={
            "recorded": KnownDataset("other", None, "s3", columns=recorded),
            "old": KnownDataset("other", None, "s3"),
        },
        bundles={},
    )
    table = {
        "from": {"job": "store"},
        "storage": "postgres",
        "write_mode": "buffered",
        "schema": {"columns": {"k": "int64", "amount": "decimal(20,2)", "id": "uint256"}, "unique": ["k"]},
    }
    text = document(
        sql("known", "SELECT * FROM t0", {"dataset": "recorded"}),
        sql("unknown", "SELECT *, anything AS x FROM t0", {"dataset": "old"}),
        sql("store", "SELECT block_number AS k FROM t0", {"job": "ingest"}),
        sql("reads", "SELECT k, amount + 1 AS more, id FROM t0", {"dataset": "stored"}),
        stored=table,
    )
    known = columns_of(text, surroundings)
    assert known["known.0"] == "block_number bigint, odd unknown"
    assert known["unknown.0"] == "x unknown, ..."
    assert known["reads.0"] == "k bigint, more decimal(21,2), id string"
    (problem,) = problems_of(document(sql("known", "SELECT od FROM t0", {"dataset": "recorded"})), surroundings)
    assert (problem.code, problem.suggestion) == ("unknown_column", "Did you mean `odd`?")


def test_unknown_inputs_make_nothing_wrong() -> None:
    """An input whose columns are not known may have any."""
    queries = (
        "SELECT a, b.c, t0.d FROM t0",
        "SELECT x.a, hour(y.b) AS h FROM t0 x JOIN t1 y ON x.k = y.k WHERE z > 1",
        "SELECT * FROM (SELECT *, 1 AS one FROM t0) WHERE two = 'x'",
        "WITH w AS (SELECT * FROM t0) SELECT w.q, w.r + w.s AS u FROM w NATURAL JOIN t1",
    )
    for query in queries:
        text = document(sql("w", query, {"dataset": "raw_blocks"}, {"job": "ingest"}))
        assert problems_of(text) == [], query


def test_all_mistakes_at_once() -> None:
    query = """
        SELECT t0.athor, block_number, sum(t1.value) AS total, base_fee_per_gas + author AS odd
        FROM t0 JOIN t1 ON t0.block_number = t1.blok_number
        WHERE from_address = 5 AND nothing.at_all > 1
        GROUP BY t0.author
    """
    problems = problems_of(document(sql("w", query, {"job": "ingest"}, {"job": "ingest", "output_index": 1})))
    assert [(problem.code, problem.message.partition(":")[0]) for problem in problems] == [
        ("unknown_column", "There is no column `athor` in `t0`."),
        ("ambiguous_column", "The column `block_number` is ambiguous"),
        ("unknown_column", "There is no column `value` in `t1`."),
        ("type_mismatch", "`+` cannot be applied to decimal(20,0) and binary."),
        ("unknown_column", "There is no column `blok_number` in `t1`."),
        ("type_mismatch", "Binary and int cannot be compared."),
        ("unknown_column", "There is no relation or column `nothing`."),
    ]


@pytest.mark.parametrize(
    "written",
    [
        "query: SELECT a FROM nope",
        "query: SELECT a\n      FROM\n\n       nope",
        "query: 'SELECT ''a'' FROM nope'",
        "query: 'SELECT\n\n   ''a''\n   FROM nope'",
        'query: "SELECT \\"a\\"\\n\\tFROM nope"',
        'query: "SELECT \\x41 \\\n     \\u0042 FROM\\\n     \\ nope"',
        "query: |\n  SELECT a\n    FROM nope\n",
        "query: |2-\n    SELECT a\n  FROM nope # no comment\n",
        "query: >\n  SELECT a\n\n    FROM\n   nope\n  WHERE x\n",
        "query: >+ # a comment\n\n  SELECT é🙂 FROM nope\n\n",
        "query: &anchor SELECT nope",
        "query: &anchor |\n SELECT nope",
        "{query: SELECT nope}",
    ],
)
def test_a_word_is_found_in_every_style(written: str) -> None:
    for event in yaml.parse(written, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.ScalarEvent) and "nope" in event.value:
            assert event.start_mark is not None
            assert event.end_mark is not None
            raw = RawScalar(written, event.start_mark.index, event.end_mark.index, event.style or "")
            line, column = raw.locate(event.value, event.value.index("nope"))
            assert written.split("\n")[line - 1][column - 1 :].startswith("nope")
            return
    raise AssertionError("there is no such scalar")


def test_hostile_queries_are_bounded() -> None:
    """Whatever costs too much is unknown, and the document is read."""
    wide = ", ".join(f"block_number AS c{index}" for index in range(800))
    stars = ", ".join(["t0.*"] * 400)
    deep = "SELECT block_number FROM t0"
    for _ in range(20):
        deep = f"SELECT * FROM ({deep})"
    jobs = [
        sql("wide", f"SELECT {wide} FROM t0", {"job": "ingest"}),
        sql(
            "wider",
            f"WITH a AS (SELECT {stars} FROM t0), b AS (SELECT a.*, a.*, a.* FROM a) SELECT * FROM b",
            {"job": "ingest"},
        ),
        sql("deep", deep, {"job": "ingest"}),
        *(sql(f"z{index}", f"SELECT {wide} FROM t0 -- {'x' * 1000}", {"job": "ingest"}) for index in range(30)),
    ]
    known = columns_of(document(*jobs))
    assert known["wide.0"].count("bigint") == 800
    assert "wider.0" not in known
    assert known["deep.0"] == "block_number bigint"
    assert "z29.0" not in known  # beyond what is analysed of a document


def test_optional_columns_of_a_chain_are_known_and_misspelt_ones_have_their_place() -> None:
    transactions = {"job": "ingest", "output_index": 1}
    text = document(sql("created", "SELECT block_number, contract_address FROM t0", transactions))
    with_column = text.replace("chain_id: 1", "chain_id: 1\n    columns: {transactions: [l1_fee, contract_address]}")
    assert "`contract_address`" in problems_of(text)[0].message
    assert columns_of(with_column)["created.0"] == "block_number bigint, contract_address binary"
    (problem,) = problems_of(with_column.replace("[l1_fee, contract_address]", "[l1_fee, contract_adress]"))
    assert (problem.code, problem.suggestion) == ("config_invalid", "Did you mean `contract_address`?")
    line = with_column.splitlines()[problem.line - 1]
    assert line[problem.column - 1 :].startswith("contract_a")
