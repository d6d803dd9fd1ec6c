"""Queries are checked in processes with limits; one that costs too much hurts nobody else."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.query.gate.corpus import PARAMETERS, RELATIONS
from tracelake.errors import TraceError
from tracelake.query.gate.check import QueryGate
from tracelake.query.gate.processes import GateProcesses

QUERY = """
    SELECT author, count(*) AS n FROM blocks
    WHERE block_number BETWEEN $first AND $last AND author IN ('0xa', '0xb') GROUP BY author
"""
COSTLY = "SELECT " + ", ".join(["length(range(99999))"] * 60)
"""DuckDB computes it while it binds names."""


def run(work: Callable[[GateProcesses], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        gate = GateProcesses(options.pop("processes", 2), **options)
        try:
            await work(gate)
        finally:
            await gate.close()

    asyncio.run(main())


def test_the_answer_is_that_of_a_check_here(gate: QueryGate) -> None:
    async def work(processes: GateProcesses) -> None:
        assert await processes.check("a", QUERY, PARAMETERS, RELATIONS) == gate.check(QUERY, PARAMETERS, RELATIONS)
        with pytest.raises(TraceError) as refused:
            await processes.check("a", "SELECT *\nFROM read_text('/etc/passwd')", {}, RELATIONS)
        assert (refused.value.code, refused.value.details["line"]) == ("query_not_allowed", 2)
        with pytest.raises(TraceError) as malformed:
            await processes.check("a", "SELECT '\ud800'", {}, RELATIONS)
        assert malformed.value.code == "query_parameter"

    run(work)


def test_a_query_that_costs_too_much_is_refused_while_another_org_is_answered() -> None:
    async def work(processes: GateProcesses) -> None:
        await processes.warm_up()
        costly = asyncio.create_task(processes.check("a", COSTLY, {}, RELATIONS))
        assert (await processes.check("b", QUERY, PARAMETERS, RELATIONS)).relations == {"blocks"}
        with pytest.raises(TraceError) as refused:
            await costly
        assert refused.value.code == "query_too_costly"
        assert (await processes.check("a", QUERY, PARAMETERS, RELATIONS)).relations == {"blocks"}

    run(work, seconds=0.5)


def test_one_org_is_refused_beyond_its_queue() -> None:
    async def work(processes: GateProcesses) -> None:
        checks = [asyncio.create_task(processes.check("a", QUERY, PARAMETERS, RELATIONS)) for _ in range(5)]
        results = await asyncio.gather(*checks, return_exceptions=True)
        codes = [result.code for result in results if isinstance(result, TraceError)]
        assert codes == ["rate_limited"] * 3

    run(work, processes=1, waiting=1)
