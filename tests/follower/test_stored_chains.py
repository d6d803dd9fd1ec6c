"""Random chains, followed into tables in Postgres and compacted into Parquet files: see `stored_run.py`.

After every change, what readers see is the chain that is stored, row by row, and in the end that of the nodes; and
whoever has only heard of the events, late, in any order and some of them several times, has the same rows.
`TRACE_SEED=123` runs that seed alone.
"""

import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.follower.coverage import Coverage, check_chains, seeds_of_run, seeds_of_soak
from tests.follower.stored_run import FATES, StoredRun
from tests.support.postgres import TestCluster

CHAINS = 24
PARTS = 3
"""Each in a database of its own."""


@pytest.fixture
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


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


@pytest.mark.parametrize("part", range(PARTS))
def test_readers_see_the_chain_at_every_step(part: int, dsn: str, tmp_path: Path) -> None:
    fates: Counter[str] = Counter()
    check_one = partial(check, dsn=dsn, directory=tmp_path, fates=fates)
    coverage = check_chains(seeds_of_run(CHAINS)[part::PARTS], check_one)
    if "TRACE_SEED" not in os.environ:
        assert min(coverage.depths) <= 3
        assert max(coverage.depths) > 32
        assert coverage.nested >= coverage.chains / 2
        assert min(coverage.repeated, coverage.reordered) >= 5 * coverage.chains
        assert coverage.crashes + sum(fates[fate] for fate in FATES) >= coverage.chains
        assert len(set(fates) & set(FATES)) >= 4


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_more_stored_chains(dsn: str, tmp_path: Path) -> None:
    """As many as `TRACE_CHAINS` says."""
    check_chains(seeds_of_soak(500), partial(check, dsn=dsn, directory=tmp_path, fates=Counter()))
