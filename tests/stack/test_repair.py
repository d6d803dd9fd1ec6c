"""`trace repair` on a real stack: reorganisations of blocks in files, once of blocks that the table had, and once of
blocks that only files ever had. All dependants follow: decoded logs, windows of blocks and of time, running state and a
buffered table. In the end the live datasets are the chain, and everything else is what another DAG computes from
scratch, row by row."""

from collections import Counter

import pytest

from tests.stack.reorg_dag import SOURCES, write_part
from tests.stack.reorg_stack import ReorgStack
from tests.support.chain import serve_chain

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

FIRST, BEGIN, BEFORE, LAST = 870, 919, 936, 945
"""First block, and the newest block at the beginning, when the chain is reorganised, and at the end."""
TABLE_START, SEALED = 900, 919
"""First block that the table ever had, and the last block in files before the first repair."""
SHALLOW, DEEP = 913, 885
"""First blocks that are replaced: one that the table had, and one that it never had."""
JOBS = ("decode", "moves", "tens", "totals", "hours")
FILES = ("decoded", "tens", "totals", "hours")
SOURCE = "live/head_head"


class RepairStack(ReorgStack):
    def await_refusal(self, *texts: str) -> None:
        """Until the follower has stopped at the reorganisation, with an error that has these texts."""

        def is_refused() -> bool:
            (source,) = (source for source in self.trace("sources")["sources"] if source["kind"] == "always_on")
            state, error = source["state"], source.get("error", "")
            return state in ("dead", "backing_off") and all(text in error for text in ("reorg_too_deep", *texts))

        self.wait_until(is_refused, "reorg_too_deep", timeout=120)

    def count_new_tasks(self, former: Counter[tuple[str, str]]) -> dict[str, Counter[int]]:
        """By job with units of ten blocks: how many tasks there were for each of its units, by first block."""
        counts: dict[str, Counter[int]] = {}
        for (job, unit), number in (self.count_tasks("live") - former).items():
            if job in ("decode", "moves", "tens", "totals"):
                counts.setdefault(job, Counter())[int(unit.removeprefix("p:").split("-")[0])] += number
        return counts


def test_repairs_of_files_go_through_all_dependants() -> None:
    with serve_chain(LAST + 1, head=BEGIN + 1) as chain:
        stack = RepairStack(chain.url)
        with stack.running():
            stack.deploy("live", write_part("live", FIRST, JOBS, live=True))
            stack.settle("live", at=BEGIN)
            chain.show(BEFORE + 1)
            stack.settle("live", at=BEFORE)
            stack.await_boundary(SEALED)
            former_rows, former_tasks = stack.read_rows("blocks"), stack.count_tasks("live")

            chain.reorganise(SHALLOW)
            stack.await_refusal(f"after block {SHALLOW // 10 * 10 - 1}", f"blocks up to {SEALED} are final")
            assert "reorg too deep" in stack.shell("trace sources").replace("_", " "), "between two attempts, too"
            stack.wait_until(lambda: "reorg_too_deep" in stack.shell("trace why live_hours"), "the reason")
            assert stack.read_rows("blocks") == former_rows, "nothing is written"
            assert "files that changed read again" in stack.shell(f"trace repair {SOURCE}")
            stack.await_chain(chain, FIRST, BEFORE)
            tasks = stack.count_new_tasks(former_tasks)
            assert tasks.keys() == {"decode", "moves", "tens", "totals"}
            for job, units in tasks.items():
                assert min(units) == SHALLOW // 10 * 10, f"{job} computes units that did not change"

            chain.reorganise(DEEP)
            stack.await_refusal(f"from block {TABLE_START - 1} on, or from further back", "--from BLOCK")
            assert f"from block {DEEP} on" in stack.shell(f"trace repair {SOURCE} --from {DEEP}")
            stack.await_chain(chain, FIRST, BEFORE)

            chain.show(LAST + 1)
            stack.settle("live", at=LAST)
            stack.await_boundary(929)  # files of blocks that the repairs replaced
            stack.await_chain(chain, FIRST, LAST)
            stack.deploy("again", write_part("again", FIRST, JOBS, live=False))
            stack.settle("again", at=LAST)
            for dataset in (*SOURCES, *FILES):
                assert stack.differing("live", dataset) == [], dataset
            stack.wait_until(lambda: stack.differing("live", "moves") == [], "the buffered table", timeout=60)
            counts = ", ".join(f"(SELECT count(*) FROM again_{name})" for name in (*FILES, "moves"))
            assert all(count > 0 for count in stack.ask(f"SELECT {counts}")[0]), "nothing is compared with nothing"
            query = f"SELECT min(block_number) < {DEEP}, max(block_number) >= {SHALLOW} FROM again_moves"
            assert stack.ask(query) == [[True, True]]
