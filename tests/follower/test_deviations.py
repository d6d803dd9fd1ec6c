"""The follower on chains that differ from Ethereum, as far as the job says so."""

import pytest

from tests.follower.conftest import BLOCKS
from tests.follower.source import Source, Steps, use
from tests.spark.evm.support import expected
from tests.support.chain import ServedChain


def test_phantom_transactions_are_left_out_if_the_job_says_so(
    nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = nodes[0]
    use(monkeypatch, chain)
    number = next(number for number in range(BLOCKS) if len(chain.block(number).block["transactions"]) > 1)
    usual = expected([chain.block(number) for number in range(BLOCKS)])["transactions"]
    dropped = [row for row in usual if row["block_number"] == number][-1]
    chain.lose_receipts(number)
    strict = Source(chain_kind="cronos", phantom_transactions="fail", log_index="as_given")
    strict.run_until_stopped(Steps(*[lambda: None] * 5))
    assert strict.reports[-1].state in ("no_node", "node_failed")
    dropping = Source(phantom_transactions="drop")
    dropping.run_until_stopped(Steps())
    assert dropping.rows("transactions") == [row for row in usual if row is not dropped]


@pytest.mark.parametrize("rule", ["as_given", "renumber"])
def test_numbers_of_logs_are_kept_or_replaced(
    nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    chain = nodes[0]
    use(monkeypatch, chain)
    usual = expected([chain.block(number) for number in range(BLOCKS)])["logs"]
    number = usual[0]["block_number"]

    def shift(log: dict[str, str]) -> dict[str, str]:
        return {**log, "logIndex": hex(int(log["logIndex"], 16) + 7)}

    chain._change(
        number,
        lambda block, receipts: (
            block,
            [{**receipt, "logs": [shift(log) for log in receipt["logs"]]} for receipt in receipts],
        ),
    )
    source = Source(log_index=rule)
    source.run_until_stopped(Steps())
    moved = 7 if rule == "as_given" else 0
    assert source.rows("logs") == [
        {**row, "log_index": row["log_index"] + (moved if row["block_number"] == number else 0)} for row in usual
    ]
