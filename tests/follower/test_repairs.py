"""Reorganisations of blocks that are in files: which files a repair has read again, and which repairs are refused."""

from dataclasses import replace

import pytest

from tests.follower.block_tree import chain_to
from tests.follower.live_follower import LiveFollower


def test_a_repair_finds_the_files_that_changed_by_itself() -> None:
    live = LiveFollower()
    live.world.reorganise(40, 41)
    outcome = live.run_until("reorg_too_deep")
    assert "after block 19, and blocks up to 49 are final" in outcome.error
    assert "run `trace repair DAG/JOB`;" in outcome.error
    live.permit()
    live.run_until("at_head")
    assert live.read_again == [(20, 49)]
    assert live.wrong_blocks == []


@pytest.mark.parametrize(("first", "from_block"), [(20, 54), (20, 30), (25, 30), (25, 49), (49, 50), (45, 10**6)])
def test_a_repair_that_would_leave_files_of_the_former_chain_is_refused(first: int, from_block: int) -> None:
    live = LiveFollower()
    before = dict(live.tables.links)
    live.world.reorganise(60 - first, 61 - first)
    live.permit(from_block)
    outcome = live.run_until("reorg_too_deep")
    unit = first - first % 10
    assert f"`--from {from_block}` would leave files of the former chain" in outcome.error
    assert f"leave out `--from`, or give block {unit} or one below it" in outcome.error
    assert live.tables.links == before
    live.permit(unit, permit_id=2)
    live.run_until("at_head")
    assert live.wrong_blocks == []


@pytest.mark.parametrize(
    ("first", "from_block", "read_again"),
    [
        (20, 20, (20, 49)),
        (25, None, (20, 49)),
        (25, 25, (20, 49)),
        (25, 29, (20, 49)),
        (25, 7, (0, 49)),
        (49, None, (40, 49)),
        (1, None, (0, 49)),
    ],
)
def test_whole_units_are_read_again(first: int, from_block: int | None, read_again: tuple[int, int]) -> None:
    live = LiveFollower()
    live.world.reorganise(60 - first, 62 - first)
    live.permit(from_block)
    live.run_until("at_head")
    assert live.read_again == [read_again]
    assert live.wrong_blocks == []


def test_hashes_below_the_tables_are_not_stored_so_a_person_names_the_block() -> None:
    live = LiveFollower(80, first=60)
    assert live.tables.extent.table_start == 50
    live.world.reorganise(60, 61)
    for from_block, words in ((None, "needs `--from BLOCK`"), (55, "give block 49 or one below it")):
        live.permit(from_block)
        outcome = live.run_until("reorg_too_deep")
        assert words in outcome.error
    live.options = replace(live.options, repair=None)
    live.restart()
    error = live.run_until("reorg_too_deep").error
    assert "from block 49 on, or from further back" in error
    assert "trace repair DAG/JOB --from BLOCK` with the first block that changed or one below it, at most 49" in error
    live.permit(20, permit_id=2)
    live.run_until("at_head")
    assert live.read_again == [(20, 69)]
    assert live.wrong_blocks == []


def test_without_hashes_of_sealed_blocks_nothing_above_the_seal_is_accepted() -> None:
    """Tables that were sealed before hashes were stored."""
    live = LiveFollower()
    live.tables.marks.clear()
    live.world.reorganise(40, 41)
    live.permit(54)
    outcome = live.run_until("reorg_too_deep")
    assert "give block 49 or one below it" in outcome.error
    live.permit(20)
    live.run_until("at_head")
    assert live.wrong_blocks == []
    # From now on the hash of the newest sealed block is known.
    assert live.tables.marks == {49: live.world.chain[49].hash}


def test_the_tables_alone_are_replaced_if_no_file_changed() -> None:
    live = LiveFollower(59)
    assert live.tables.extent.sealed_to == 49
    live.world.reorganise(9, 10)
    assert "further back than 5 blocks below block 58" in live.run_until("reorg_too_deep").error
    live.permit()
    outcome = live.run_until("rewritten")
    assert (outcome.first, outcome.depth) == (50, 9)
    live.run_until("at_head")
    assert live.read_again == []
    assert live.wrong_blocks == []


def test_the_first_block_above_the_files_may_change_without_a_repair() -> None:
    live = LiveFollower(59, max_reorg_depth=9)
    live.restart()
    live.world.reorganise(9, 10)
    live.run_until("rewritten")
    live.run_until("at_head")
    assert live.wrong_blocks == []


def test_the_error_names_the_seal_or_the_limit() -> None:
    sealed = LiveFollower(max_reorg_depth=30)
    sealed.world.reorganise(15, 16)
    error = sealed.run_until("reorg_too_deep").error
    assert "after block 44, and blocks up to 49 are final" in error
    assert "further back than" not in error
    deep = LiveFollower(finality_depth=50)
    deep.world.reorganise(15, 16)
    error = deep.run_until("reorg_too_deep").error
    assert "further back than 5 blocks below block 59 on" in error
    assert "are final" not in error


def test_a_permission_is_good_for_one_repair() -> None:
    live = LiveFollower()
    live.world.reorganise(40, 41)
    live.permit()
    live.run_until("at_head")
    live.world.reorganise(30, 31)
    live.run_until("reorg_too_deep")
    live.restart()
    live.run_until("reorg_too_deep")
    live.permit(permit_id=2)
    live.run_until("at_head")
    assert live.read_again == [(20, 49), (30, 49)]
    assert live.wrong_blocks == []


def test_a_permission_ends_while_the_attempt_goes_on() -> None:
    live = LiveFollower()
    live.permit(seconds=86_400)
    live.run_until("at_head")
    live.world.now += 90_000
    live.world.reorganise(40, 41)
    live.run_until("reorg_too_deep")
    live.permit(permit_id=2, seconds=86_400)
    live.run_until("at_head")
    assert live.wrong_blocks == []


def test_nodes_that_return_leave_the_permission_unused() -> None:
    live = LiveFollower()
    live.permit()
    former = live.world.head
    live.world.reorganise(40, 38)
    live.run_until("shorter_chain")
    live.world.chain = chain_to(former)
    live.run_until("at_head")
    live.world.reorganise(40, 41)
    live.run_until("at_head")
    assert live.wrong_blocks == []
