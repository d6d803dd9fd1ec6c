"""Random chains, followed into tables in Postgres and compacted into Parquet files: see `stored_run.py`.

After every change, what readers see is the chain that is stored, row by row, and in the end that of the nodes; and
whoever has only heard of the events, late, in any order and some of them several times, has the same rows.
`TRACE_SEED=123` runs that seed alone.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.follower.coverage import Coverage, check_chains, seeds_of_run, seeds_of_soak
from tests.follower.stored_run import FATES, StoredRun
from tests.support.postgres import TestCluster
from tests.support.shared_types import shared_types

CHAINS = 200
PART = 25
"""Chains of one test, in a database of their own: as many as have everything that chains are made for."""


@pytest.fixture
def dsn(cluster: TestCluster) -> Iterator[str]:
    with shared_types():
        yield cluster.fresh("data")


def check_part(seeds: Sequence[int], dsn: str, directory: Path) -> None:
    fates: Counter[str] = Counter()
    coverage = check_chains(seeds, partial(check, dsn=dsn, directory=directory, fates=fates))
    if "TRACE_SEED" not in os.environ:
        coverage.check()
        assert set(fates) >= set(FATES)
        assert sum(fates[fate] for fate in FATES) >= coverage.chains


def check(seed: int, dsn: str, directory: Path, fates: Counter[str]) -> Coverage:
    objects = directory / "objects"
    run = StoredRun(seed, dsn, objects)
    coverage = run.follow(run.rng.choice((10, 20)))
    run.check_result()
    assert run.files.boundary is not None
    assert run.files.boundary >= run.first_stored, "no unit was compacted"
    assert run.checks >= run.rewrites.writes
    fates.update(run.fates)
    shutil.rmtree(objects)
    return coverage


def test_readers_see_the_chain_at_every_step(dsn: str, tmp_path: Path) -> None:
    check_part(seeds_of_run(PART), dsn, tmp_path)


@pytest.mark.system
@pytest.mark.parametrize("first", range(PART, CHAINS, PART))
def test_readers_see_other_chains_at_every_step(first: int, dsn: str, tmp_path: Path) -> None:
    check_part(range(first, first + PART), dsn, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_more_stored_chains(dsn: str, tmp_path: Path) -> None:
    """As many as `TRACE_CHAINS` says."""
    check_chains(seeds_of_soak(500), partial(check, dsn=dsn, directory=tmp_path, fates=Counter()))
