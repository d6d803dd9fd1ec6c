"""What the recorded chain lacks, so that a recipe without its point would fail the comparison.

The chain has one pool, which is announced before its first swap. `MORE_LOGS` adds two more, copies of the first: one
that nothing announces, and one that is announced long after its first swaps. The chain has only three whole days, so
the seven-day average is computed a second time, from seven hours.
"""

from benchmarks.support.models_recipes import fit_recipe, moving_average, recipe

ANNOUNCED_LATE, NOT_ANNOUNCED = "bb" * 20, "cc" * 20
ANNOUNCED_AT = 1_200
"""The block, or the next one with a swap."""

MORE_LOGS = f"""
name: more_logs
defaults: {{runtime: ecs_platform}}
jobs:
  - name: more
    activation: reactive
    operator: spark_sql
    execution_strategy: PerPartition
    inputs: [{{from: {{dataset: logs}}}}]
    config:
      inputs: {{logs: 0}}
      query: |
        WITH swaps AS (
          SELECT * FROM logs WHERE topic0 = X'd78ad95fa46c994b6551d0da85fc275fe613ce37657fb8d5e3d130840159d822')
        SELECT * FROM logs
        UNION ALL
        SELECT block_number, transaction_index, log_index + 10000 AS log_index, transaction_hash,
               X'{NOT_ANNOUNCED}' AS address, topic0, topic1, topic2, topic3, data, chain_id FROM swaps
        UNION ALL
        SELECT block_number, transaction_index, log_index + 20000 AS log_index, transaction_hash,
               X'{ANNOUNCED_LATE}' AS address, topic0, topic1, topic2, topic3, data, chain_id FROM swaps
        UNION ALL
        SELECT block_number, transaction_index, log_index + 30000 AS log_index, transaction_hash,
               X'{ANNOUNCED_LATE}' AS address,
               X'9d624b01705090e0c402c84f2bdef9c498399a009cee9a4e08ab004bae447121' AS topic0, topic1,
               CAST(NULL AS BINARY) AS topic2, topic3, substring(data, 1, 64) AS data, chain_id
        FROM swaps WHERE block_number >= {ANNOUNCED_AT}
publish:
  more_logs: {{from: {{job: more}}, storage: s3}}
"""
UNCOUNTED_SWAPS = f"""
    SELECT lower(hex(address)) AS pool, count(*) AS swaps FROM logs
    WHERE lower(hex(topic0)) = 'd78ad95fa46c994b6551d0da85fc275fe613ce37657fb8d5e3d130840159d822'
      AND (block_number < {ANNOUNCED_AT} OR lower(hex(address)) <> '{ANNOUNCED_LATE}')
      AND lower(hex(address)) IN ('{ANNOUNCED_LATE}', '{NOT_ANNOUNCED}')
    GROUP BY pool"""

HOURLY_AVERAGE = "hourly_average"
HOURLY_AVERAGE_QUERY = moving_average(3_600)


def fit_recipe_to_test(name: str, prices_url: str, unit: int) -> str:
    text = fit_recipe(name, prices_url, unit)
    return text.replace("{dataset: logs}", "{dataset: more_logs}") if name == "pool_volume" else text


def hourly_average() -> str:
    """The seven-day average with hours instead of days."""
    text = recipe("moving_average")
    for old, new in (
        ("recipe_moving_average", "recipe_hourly_average"),
        ("grain: day", "grain: hour"),
        ("'day'", "'hour'"),
        ("DIV 86400", "DIV 3600"),
        ("  moving_average:", f"  {HOURLY_AVERAGE}:"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
