"""Reorganisations on a real stack, of tables that a follower writes and of live datasets: through decoding, windows of
blocks and of time, running state and a check to a buffered table. In the end everything is what another DAG computes
from scratch, row by row, and each reorganisation has run what it changed once, and nothing else."""

import re
from collections import Counter
from typing import Any

import pytest

from tests.stack.reorg_dag import FILES, SOURCES, write_dag
from tests.stack.reorg_stack import ReorgStack
from tests.support.chain import ServedChain, serve_chain

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

FIRST, BEGIN, FORK, BEFORE, LAST = 930, 965, 963, 973, 995
"""First block, newest block at the beginning, first block that is replaced, newest blocks then and at the end."""
FORMER_TIMES = {955: -600, 956: 600, 965: -140, 966: 140, 970: 3000}
"""Seconds by which blocks are later from these on: 955 and 965 are older than their parents, and 970 is an hour on."""
LATER_TIMES = {965: 140, 966: -140, 968: -70, 969: 70, 970: -3000, 972: 3000, 973: -170, 974: 170}
"""What the reorganisation changes: 968 and 973 are now older instead of 965; 970 and 971 are an hour back."""
HOUR, DAY = 3600, 86_400


def window(start: int, size: int) -> str:
    return f"p:{start}-{start + size - 1}"


def hour(number: int) -> str:
    return window(number * HOUR, HOUR)


CHANGED = {
    "tens": {window(960, 10)},
    "totals": {window(960, 10)},
    "hold_together": {window(960, 10), window(970, 10)},
    "hours": {hour(492_360), hour(492_361)},
    "so_far": {hour(492_360), hour(492_361)},
    "days": {window(20_515 * DAY, DAY)},
}
"""Units that the reorganisation changes, by job. Units of complete windows wait for the end of 970-979."""
UPDATES = ("decode", "moves")
"""Their units are the writes of the follower, or windows of ten blocks."""
DAGS = ("tables", "live")


def find_units(tasks: Counter[tuple[str, str]], job: str) -> set[str]:
    """The units of the job that have blocks from the fork on: `c:LAST` or `p:FIRST-LAST`."""
    return {unit for name, unit in tasks if name == job and int(re.split("[:-]", unit)[-1]) >= FORK}


@pytest.fixture
def chain() -> Any:
    with serve_chain(LAST + 1, head=BEGIN + 1) as chain:
        chain.reorganise(FIRST, changed=0, later=FORMER_TIMES)
        yield chain


def test_a_reorganisation_goes_through_all_dependants(chain: ServedChain) -> None:
    stack = ReorgStack(chain.url)
    with stack.running():
        for dag in DAGS:
            stack.deploy(dag, write_dag(dag, FIRST, live=dag == "live"))
        stack.settle(*DAGS, at=BEGIN)
        stack.await_boundary(949)
        chain.show(BEFORE + 1)
        stack.settle(*DAGS, at=BEFORE)
        stack.await_boundary(959)  # blocks 950 to 959 were in the table
        former = {dag: stack.count_tasks(dag) for dag in DAGS}
        for dag in DAGS:
            assert stack.findings(dag) == [955, 965]

        chain.reorganise(FORK, later=LATER_TIMES)
        stack.settle(*DAGS, at=BEFORE, reorganised=True)
        for dag in DAGS:
            changed = CHANGED | {job: find_units(former[dag], job) for job in UPDATES}
            once = {(job, unit): 1 for job, units in changed.items() for unit in units}
            assert dict(stack.count_tasks(dag) - former[dag]) == once, dag
            for job, units in changed.items():
                assert units, job
                assert {unit for name, unit in former[dag] if name == job} > units, f"{job} has others as well"
            assert stack.findings(dag) == [955, 968, 973]

        chain.show(LAST + 1)
        stack.settle(*DAGS, at=LAST)
        stack.await_boundary(979)  # files of blocks that the reorganisation replaced
        stack.deploy("again", write_dag("again", FIRST, live=False))
        stack.settle("again", at=LAST)
        for dag in DAGS:
            for dataset in (*SOURCES, *FILES):
                assert stack.differing(dag, dataset) == [], (dag, dataset)
            stack.wait_until(
                lambda dag=dag: stack.differing(dag, "moves") == [],  # type: ignore[misc]
                "the buffered table",
                timeout=60,
            )
        counts = ", ".join(f"(SELECT count(*) FROM again_{name})" for name in (*SOURCES, *FILES, "moves"))
        assert all(count > 0 for count in stack.ask(f"SELECT {counts}")[0]), "nothing is compared with nothing"
        assert stack.ask("SELECT max(block_number) >= 963 FROM again_moves") == [[True]]
