"""Postgres data goes away under a follower that is about to write: it is killed once, and stopped once. Until it is
back, the chain grows and is reorganised. In the end the live datasets are the chain, and what depends on them is right,
row by row."""

import os
import signal
import threading
from functools import partial

import pytest

from tests.chain.faults import Call
from tests.stack.reorg_dag import write_part
from tests.stack.reorg_stack import ReorgStack
from tests.support.chain import ServedChain, serve_chain
from tracelake.stack.machine import postgres_processes_in

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

FIRST, BEGIN, LAST = 300, 329, 369
"""First block, and the newest block at the beginning and at the end."""
OUTAGES = ((signal.SIGKILL, 335, 345), (signal.SIGINT, 350, 360))
"""How Postgres data ends, the block that the follower reads then, and the newest block when it is started again."""
DEPTH = 6
"""So many blocks below the one that the follower read are replaced meanwhile."""
JOBS = ("decode", "moves", "tens")
TRANSFER = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
ADDRESS = "0" * 24 + "%"
"""A word that holds one. There are others, which no decoder takes."""
STATE = "SELECT state, stored FROM source_progress"


def reads_whole(call: Call, number: int) -> bool:
    """Whether the call asks for this block with its transactions, and not only for its header."""
    return call.method == "eth_getBlockByNumber" and call.params == [hex(number), True]


class OutageStack(ReorgStack):
    def await_state(self, state: str, stored: int | None = None) -> None:
        """Until the follower says that it is in this state, with this newest block."""

        def is_told() -> bool:
            rows = self.sql(STATE)
            return [row["state"] for row in rows] == [state] and stored in (None, rows[0]["stored"])

        self.wait_until(is_told, f"the state {state}", timeout=240)

    def end_data_at(self, block: int, how: signal.Signals, is_away: threading.Event, calls: list[Call]) -> None:
        """Ends it when the block is read. The supervisor is held up until `start_data`."""
        assert self.process is not None
        if not is_away.is_set() and any(reads_whole(call, block) for call in calls):
            self.process.send_signal(signal.SIGSTOP)
            os.kill(self.parts()["postgres-data"]["pid"], how)
            is_away.set()

    def start_data(self) -> None:
        assert self.process is not None
        directory = self.home.postgres_data.resolve()
        self.wait_until(lambda: not postgres_processes_in(directory), "Postgres data to be gone")
        self.process.send_signal(signal.SIGCONT)

    def find_differences(self, one: str, other: str) -> list[list[object]]:
        return self.ask(f"({one} EXCEPT ALL {other}) UNION ALL ({other} EXCEPT ALL {one})")

    def check_dependants(self, chain: ServedChain) -> None:
        """Windows are those of the blocks of the node, decoded logs those of the logs; the buffered table has both."""
        complete = [chain.block(number) for number in range(FIRST, (LAST + 1) // 10 * 10)]
        tens = [[one.number, one.block["hash"][2:].upper(), len(one.block["transactions"])] for one in complete]
        assert sorted(self.ask("SELECT block_number, hash, transactions FROM live_tens")) == tens
        logs = f"""
            SELECT block_number, log_index, hex(transaction_hash) AS hash FROM live_logs
            WHERE lower(hex(topic0)) = '{TRANSFER}' AND topic3 IS NULL AND octet_length(data) = 32
              AND hex(topic1) LIKE '{ADDRESS}' AND hex(topic2) LIKE '{ADDRESS}'"""
        decoded = "SELECT block_number, log_index, hex(transaction_hash) AS hash FROM live_decoded"
        assert self.find_differences(f"({logs})", f"({decoded} WHERE standard = 'erc20')") == []
        values = "SELECT block_number, log_index, batch_index, hex(transaction_hash) AS hash, amount_string AS amount"
        moves = "SELECT block_number, log_index, batch_index, hash, amount FROM live_moves"
        self.wait_until(
            lambda: self.find_differences(f"({values} FROM live_decoded)", f"({moves})") == [],
            "the buffered table",
            timeout=60,
        )
        assert self.ask("SELECT count(*) > 0 FROM live_moves") == [[True]]


def test_tables_are_the_chain_after_postgres_data_was_away() -> None:
    with serve_chain(LAST + 1, head=BEGIN + 1) as chain:
        stack = OutageStack(chain.url, max_attempts="100", retry_max_seconds="2")
        with stack.running():
            stack.deploy("live", write_part("live", FIRST, JOBS, live=True))
            stack.await_state("at_head", BEGIN)
            for how, block, newest in OUTAGES:
                is_away = threading.Event()
                chain.watch(partial(stack.end_data_at, block, how, is_away))
                chain.show(block + 1)
                stack.wait_until(is_away.is_set, "the follower to read blocks")
                chain.reorganise(block - DEPTH, later={block - DEPTH: 1})
                chain.show(newest + 1)
                stack.await_state("store_unavailable")
                stack.start_data()
                stack.await_state("at_head", newest)
            chain.show(LAST + 1)
            stack.await_chain(chain, FIRST, LAST)
            stack.check_dependants(chain)
            ((attempt,),) = stack.sql("SELECT attempt FROM source_progress")
            assert attempt == 1, "the follower waited for Postgres data"
