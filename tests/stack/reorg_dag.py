"""A DAG with dependants of every kind, for tests/stack/test_reorgs.py: of tables that a follower writes, or of live
datasets."""

from collections.abc import Sequence

import yaml

CHAIN_ID = 1337001
_TABLES = """
  - name: head
    activation: source
    source: {kind: always_on}
    operator: block_follower
    outputs: 3
    config: {chain_id: CHAIN_ID, start: FIRST, batch_blocks: 10, poll_max_seconds: 1}"""
_LIVE = """
  - name: head
    chain_id: CHAIN_ID
    start: FIRST
    unit_blocks: 10
    finality_depth_blocks: 12
    poll_max_seconds: 1
    publish: {blocks: NAME_blocks, transactions: NAME_transactions, logs: NAME_logs}"""
_PUBLISHED_TABLES = """
  NAME_blocks: {from: {job: head}, storage: postgres}
  NAME_transactions: {from: {job: head, output_index: 1}, storage: postgres}
  NAME_logs: {from: {job: head, output_index: 2}, storage: postgres}"""
_DAG = """
name: NAME
defaults: {runtime: ecs_platform}
CHAINSjobs:HEAD
  - {name: decode, activation: reactive, operator: decode_logs, UPDATES, inputs: [{from: {dataset: NAME_logs}}]}
  - name: moves
    activation: reactive
    operator: spark_sql
    execution_strategy: STRATEGY
    inputs: [{from: {job: decode}}]
    config:
      inputs: {t: 0}
      query: |
        SELECT t.block_number, t.log_index, t.batch_index, hex(t.transaction_hash) AS hash, t.amount_string AS amount
        FROM t
  - name: tens
    activation: reactive
    operator: spark_sql
    units: {by: blocks, size: 10}
    inputs: [{from: {dataset: NAME_blocks}}, {from: {dataset: NAME_transactions}}]
    config:
      inputs: {b: 0, t: 1}
      query: |
        SELECT b.block_number, hex(b.block_hash) AS hash, count(t.transaction_hash) AS transactions
        FROM b LEFT JOIN t ON t.block_number = b.block_number GROUP BY b.block_number, b.block_hash
  - name: totals
    activation: reactive
    operator: spark_sql
    units: {by: blocks, size: 10}
    inputs: [{from: {job: tens}}, {self: previous, columns: {last_block: bigint, transactions: bigint}}]
    config:
      inputs: {now: 0, before: 1}
      query: |
        SELECT max(last_block) AS last_block, sum(transactions) AS transactions
        FROM (SELECT now.block_number AS last_block, now.transactions FROM now
              UNION ALL SELECT before.last_block, before.transactions FROM before)
  - name: hours
    activation: reactive
    operator: spark_sql
    units: {by: time, grain: hour, when: updated}
    inputs: [{from: {dataset: NAME_blocks}, by: timestamp}, {from: {job: decode}}]
    config:
      inputs: {b: 0, t: 1}
      query: |
        SELECT b.block_number, hex(b.block_hash) AS hash, b.timestamp - ${start} AS second,
               count(t.log_index) AS transfers
        FROM b LEFT JOIN t ON t.block_number = b.block_number GROUP BY b.block_number, b.block_hash, b.timestamp
  - name: days
    activation: reactive
    operator: spark_sql
    units: {by: time, grain: day, when: updated}
    inputs: [{from: {dataset: NAME_blocks}, by: timestamp}, {from: {dataset: NAME_transactions}}]
    config:
      inputs: {b: 0, t: 1}
      query: |
        SELECT ${start} AS day, hex(max(b.block_hash)) AS hash, count(DISTINCT b.block_number) AS blocks,
               count(t.transaction_hash) AS transactions
        FROM b LEFT JOIN t ON t.block_number = b.block_number
  - name: so_far
    activation: reactive
    operator: spark_sql
    units: {by: time, grain: hour, when: updated}
    inputs: [{from: {job: hours}}, {self: previous, columns: {last_block: bigint, transfers: bigint}}]
    config:
      inputs: {now: 0, before: 1}
      query: |
        SELECT max(last_block) AS last_block, sum(transfers) AS transfers
        FROM (SELECT now.block_number AS last_block, now.transfers FROM now
              UNION ALL SELECT before.last_block, before.transfers FROM before)
  - name: hold_together
    activation: reactive
    operator: integrity_check
    units: {by: blocks, size: 10, when: updated}
    inputs: [{from: {dataset: NAME_blocks}}, {from: {dataset: NAME_transactions}}, {from: {dataset: NAME_logs}}]
publish:PUBLISHED
  NAME_decoded: {from: {job: decode}, storage: s3}
  NAME_tens: {from: {job: tens}, storage: s3}
  NAME_totals: {from: {job: totals}, storage: s3}
  NAME_hours: {from: {job: hours}, storage: s3}
  NAME_days: {from: {job: days}, storage: s3}
  NAME_so_far: {from: {job: so_far}, storage: s3}
  NAME_findings: {from: {job: hold_together}, storage: s3}
  NAME_moves:
    from: {job: moves}
    storage: postgres
    write_mode: buffered
    schema:
      columns:
        - {name: block_number, type: int64, nullable: false}
        - {name: log_index, type: int64, nullable: false}
        - {name: batch_index, type: int32, nullable: false}
        - {name: hash, type: text}
        - {name: amount, type: text}
      unique: [block_number, log_index, batch_index]
"""
SOURCES = ("blocks", "transactions", "logs")
FILES = ("decoded", "tens", "totals", "hours", "days", "so_far", "findings")
"""What dependants write to files; `moves` is a buffered table."""


def write_dag(name: str, first: int, *, live: bool) -> str:
    """`live`: final blocks are in files of units of ten, and `decode` has such units instead of those of updates."""
    updates = "units: {by: blocks, size: 10, when: updated}" if live else "execution_strategy: PerUpdate"
    text = (
        _DAG.replace("CHAINS", f"chains:{_LIVE}\n" if live else "")
        .replace("HEAD", "" if live else _TABLES)
        .replace("PUBLISHED", "" if live else _PUBLISHED_TABLES)
        .replace("UPDATES", updates)
        .replace("STRATEGY", "PerPartition" if live else "PerUpdate")
    )
    return text.replace("CHAIN_ID", str(CHAIN_ID)).replace("FIRST", str(first)).replace("NAME", name)


def write_part(name: str, first: int, jobs: Sequence[str], *, live: bool) -> str:
    """The same with some of the jobs that read the chain."""
    document = yaml.safe_load(write_dag(name, first, live=live))
    document["jobs"] = [job for job in document["jobs"] if job["name"] in ("head", *jobs)]
    names = {job["name"] for job in document["jobs"]}
    document["publish"] = {
        dataset: entry for dataset, entry in document["publish"].items() if entry["from"]["job"] in names
    }
    return str(yaml.safe_dump(document, sort_keys=False))
