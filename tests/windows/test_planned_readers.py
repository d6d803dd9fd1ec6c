"""What a plan says that a cutover computes in other DAGs, and what it does compute."""

from tests.windows.support import WindowFlow
from tracelake.wire.dags import ReaderRebuild

OWNER = """
name: w
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: src, activation: source, source: {{kind: manual}}}}
  - {{name: blocks, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{{from: {{job: src}}}}]}}
  - {{name: model, activation: reactive, operator: spark_sql, config: {{query: "SELECT {number} AS x FROM blocks"}},
      inputs: [{{from: {{job: blocks}}}}]}}
publish:
  blocks: {{from: {{job: blocks}}, storage: s3}}
  model: {{from: {{job: model}}, storage: s3}}
"""
READER = """
name: reports
defaults: {runtime: ecs_platform, operator: spark_sql}
jobs:
  - {name: copy, activation: reactive, operator: spark_sql, config: {query: SELECT * FROM model},
     inputs: [{from: {dataset: model}}]}
  - {name: wide, activation: reactive, operator: spark_sql, config: {query: SELECT * FROM model},
     units: {by: blocks, size: 200}, inputs: [{from: {dataset: model}}]}
  - {name: other, activation: reactive, operator: spark_sql, config: {query: SELECT * FROM blocks},
     units: {by: blocks, size: 100}, inputs: [{from: {dataset: blocks}}]}
publish:
  wide: {from: {job: wide}, storage: s3}
"""
FURTHER = """
name: further
defaults: {runtime: ecs_platform}
jobs:
  - {name: after, activation: reactive, operator: spark_sql, config: {query: SELECT * FROM wide},
     execution_strategy: PerPartition, inputs: [{from: {dataset: wide}}]}
"""
JOBS = ("model", "copy", "wide", "other", "after")


def prepare(windows: WindowFlow) -> None:
    windows.deploy(OWNER.format(number=1))
    windows.deploy(READER.replace(", operator: spark_sql}\njobs", "}\njobs"))
    windows.deploy(FURTHER)
    for start in (0, 100, 200, 300):
        windows.commit_source("w", "blocks", start, start + 99, f"a{start}")
    windows.run_windows(*JOBS)


def test_readers_in_other_dags_are_counted_as_they_will_compute(windows: WindowFlow) -> None:
    prepare(windows)
    plan = windows.deploy(OWNER.format(number=2), dry_run=True).plan
    assert plan.subscribers == ["reports/copy", "reports/wide"]
    assert plan.readers == [
        ReaderRebuild(dag="further", job="after", units=2),
        ReaderRebuild(dag="reports", job="copy", units=4, stale=True),
        ReaderRebuild(dag="reports", job="wide", units=2),
    ]
    assert (plan.rebuild_tasks, plan.reader_tasks) == (4, 4)

    before = {job: len(windows.tasks(job)) for job in JOBS}
    windows.deploy(OWNER.format(number=2))
    windows.run_windows("model")
    windows.harness.run(windows.harness.dispatcher.builds.run_once())
    windows.run_windows(*JOBS)
    added = {job: len(windows.tasks(job)) - before[job] for job in JOBS}
    assert added == {"model": 4, "copy": 0, "wide": 2, "other": 0, "after": 2}


def test_a_plan_that_moves_nothing_counts_no_readers(windows: WindowFlow) -> None:
    prepare(windows)
    limits = OWNER.format(number=1).replace("name: model,", "name: model, max_attempts: 7,")
    plan = windows.deploy(limits, dry_run=True).plan
    assert (plan.readers, plan.reader_tasks) == ([], 0)
