"""The follower, case by case."""

import random

import pytest

from tests.follower.block_tree import chain_to
from tests.follower.memory_store import MemoryStore, MemoryTables
from tests.follower.support import Followed
from tests.follower.world import ChainWorld, ShownNode
from tracelake.catalogue.context import NonRetryableError
from tracelake.follower.follow import LOOKS
from tracelake.follower.links import ChainLink
from tracelake.follower.nodes import VOTE_SECONDS, NodeHead, WatchedNode, choose_head
from tracelake.follower.options import FollowOptions
from tracelake.follower.store import HotStoreUnavailableError, StaleFollowerError
from tracelake.spark.evm.errors import ChainMismatchError, ForeignReceiptsError, LateBlockError

FROM_START = FollowOptions(start=0)


def make_world(blocks: int = 10) -> ChainWorld:
    return ChainWorld(random.Random(1), blocks)


def show(world: ChainWorld, label: str = "node-1") -> ShownNode:
    return ShownNode(world, label)


def follow(world: ChainWorld, options: FollowOptions = FROM_START) -> Followed:
    followed = Followed(world, [show(world)], options)
    followed.run_to_head()
    return followed


def chain_hashes(world: ChainWorld) -> list[str]:
    return [block.hash for block in world.chain]


def test_catching_up_is_in_batches_and_the_head_block_by_block() -> None:
    world = make_world(250)
    followed = follow(world)
    caught_up = len(followed.events)
    assert caught_up < 10
    for _ in range(3):
        world.grow(1)
        followed.run_to_head()
    assert [event.cursor for event in followed.events[caught_up:]] == [250, 251, 252]
    assert all(event.revision == "" and event.invalidates is None for event in followed.events)
    assert followed.hashes == chain_hashes(world)


def test_empty_tables_begin_at_the_head_or_where_the_config_says() -> None:
    world = make_world(10)
    assert list(follow(world, FollowOptions()).tables.links) == [9]
    assert min(follow(world, FollowOptions(start=4)).tables.links) == 4
    later = Followed(world, [show(world)], FollowOptions(start=12))
    assert later.follower.run_once().state == "before_start"
    world.grow(3)
    later.run_to_head()
    assert list(later.tables.links) == [12]


def test_a_reorganisation_is_one_write_that_invalidates_what_was_announced() -> None:
    world = make_world(100)
    followed = follow(world, FollowOptions(start=0, batch_blocks=3))
    followed.events.clear()
    world.reorganise(40, 42)
    outcome = followed.follower.run_once()
    assert (outcome.state, outcome.depth, outcome.first, outcome.last) == ("rewritten", 40, 60, 99)
    followed.run_to_head()
    rewrite, *news = followed.events
    assert rewrite.invalidates is not None
    assert (rewrite.invalidates.start, rewrite.invalidates.end) == (60, 99)
    assert rewrite.invalidates.reason == "reorganisation of 40 blocks"
    assert rewrite.cursor == 99
    assert rewrite.revision == f"{world.chain[99].hash}.1.1"
    assert [(event.cursor, event.invalidates) for event in news] == [(101, None)]


def test_a_chain_that_returns_to_former_blocks_is_announced_each_time() -> None:
    world = make_world(20)
    followed = follow(world)
    one = world.head
    world.reorganise(3, 3)
    other = world.head
    followed.run_to_head()
    for tip in (one, other, one):
        world.chain = chain_to(tip)
        followed.run_to_head()
        assert followed.hashes == chain_hashes(world)
    revisions = [event.revision for event in followed.events if event.invalidates is not None]
    assert revisions == [f"{other.hash}.1.1", f"{one.hash}.1.2", f"{other.hash}.1.3", f"{one.hash}.1.4"]


def test_a_shorter_chain_is_followed_when_it_has_the_height_of_the_stored_one() -> None:
    world = make_world(20)
    followed = follow(world)
    before = followed.hashes
    followed.events.clear()
    world.reorganise(5, 2)
    for _ in range(5):
        outcome = followed.follower.run_once()
        assert (outcome.state, outcome.depth) == ("shorter_chain", 5)
    assert followed.hashes == before
    world.grow(4)
    followed.run_to_head()
    ranges = [
        (event.cursor, event.invalidates and (event.invalidates.start, event.invalidates.end))
        for event in followed.events
    ]
    assert ranges == [(20, (15, 19))]
    assert followed.hashes == chain_hashes(world)


def test_a_reorganisation_that_is_too_deep_writes_nothing_and_ends_when_the_chain_returns() -> None:
    world = make_world(50)
    followed = follow(world, FollowOptions(start=0, max_reorg_depth=5))
    before, tip = followed.hashes, world.head
    world.reorganise(6, 8)
    for _ in range(5):
        outcome = followed.follower.run_once()
        assert outcome.state == "reorg_too_deep"
        assert "nothing was written" in outcome.error
    assert followed.hashes == before
    world.chain = chain_to(tip)
    world.grow(1)
    followed.run_to_head()
    assert followed.hashes == chain_hashes(world)
    world.reorganise(5, 6)
    followed.run_to_head()
    assert followed.hashes == chain_hashes(world)


def test_the_first_stored_block_may_be_replaced_too() -> None:
    world = make_world(10)
    followed = follow(world, FollowOptions())
    world.reorganise(3, 4)
    followed.run_to_head()
    assert followed.hashes == chain_hashes(world)[9:]


def test_after_a_rewrite_the_rest_of_the_stored_blocks_is_still_known() -> None:
    """A window that holds fewer links than the store must not be taken for all of it."""
    world = make_world(50)
    followed = follow(world, FollowOptions(start=0, max_reorg_depth=10))
    world.reorganise(8, 8)
    followed.run_until(lambda outcome: outcome.state == "rewritten")
    world.reorganise(30, 31)
    assert followed.follower.run_once().state == "reorg_too_deep"


def test_a_gap_in_the_stored_blocks_is_filled() -> None:
    world = make_world(30)
    followed = follow(world)
    del followed.tables.links[22]
    for rows in followed.tables.rows.values():
        rows.pop(22, None)
    world.grow(1)
    again = Followed(world, [show(world)], FROM_START)
    again.tables.links.update(followed.tables.links)
    # The check of the store wants only what differs to be invalidated; here all that was read again is.
    again.store._check_write = lambda *_arguments: None  # type: ignore[method-assign]
    again.run_to_head()
    assert again.hashes == chain_hashes(world)
    invalid = again.events[0].invalidates
    assert invalid is not None
    assert (invalid.start, invalid.end) == (22, 29)


def test_a_head_that_goes_back_on_the_same_chain_is_waited_for() -> None:
    world = make_world(20)
    followed = follow(world)
    whole = world.chain
    world.chain = whole[:15]
    assert followed.follower.run_once().state == "nodes_behind"
    world.chain = whole
    world.grow(1)
    followed.run_to_head()
    assert followed.hashes == chain_hashes(world)


def test_a_block_before_its_receipts_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(20)
    followed = follow(world)
    world.grow(1)
    for error in (LateBlockError("not yet"), ForeignReceiptsError("of another block")):
        with monkeypatch.context() as late:

            def refuse(_node: ShownNode, _first: int, _last: int, error: Exception = error) -> None:
                raise error

            late.setattr(ShownNode, "read_rows", refuse)
            outcome = followed.follower.run_once()
        assert (outcome.state, outcome.error) == ("node_failed", str(error))
        assert 0 < followed.follower.rest <= 1
        assert followed.follower.run_once().state == "no_node"
        world.now += 1
    followed.run_to_head()
    assert followed.hashes == chain_hashes(world)


def test_a_node_on_a_fork_of_its_own_is_outvoted_however_long_its_chain() -> None:
    world = make_world(30)
    forked = show(world, "node-1")
    nodes = [forked, show(world, "node-2"), show(world, "node-3")]
    followed = Followed(world, nodes, FROM_START)
    followed.run_to_head()
    mine = world.chain
    world.reorganise(4, 20)
    forked.manner, forked.fork = "forked", world.chain
    world.chain = mine
    world.grow(1)
    followed.run_to_head()
    assert followed.hashes == chain_hashes(world)


def test_two_nodes_on_two_forks_do_not_have_the_tables_rewritten_with_every_block() -> None:
    world = make_world(30)
    other = show(world, "node-2")
    followed = Followed(world, [show(world), other], FROM_START)
    followed.run_to_head()
    mine = list(world.chain)
    world.reorganise(2, 3)
    other.manner, other.fork = "forked", list(world.chain)
    world.chain = mine
    followed.run_until(lambda outcome: outcome.state == "at_head")
    assert followed.tables.rewrites == []
    world.grow(1)
    followed.run_to_head()
    assert followed.tables.rewrites == []


def test_a_fork_of_one_node_does_not_win_while_the_others_fail_for_a_moment() -> None:
    world = make_world(30)
    nodes = [show(world, f"node-{number}") for number in (1, 2, 3)]
    followed = Followed(world, nodes, FROM_START)
    followed.run_to_head()
    mine = list(world.chain)
    world.reorganise(4, 20)
    nodes[2].manner, nodes[2].fork = "forked", list(world.chain)
    world.chain = mine
    world.now -= 60  # as of the last look
    followed.follower.run_once()
    for node in nodes[:2]:
        node.failing = 1.0
        world.now += 1
        outcome = followed.follower.run_once()
    assert outcome.state == "no_node"
    assert followed.tables.rewrites == []
    world.now += 2 * VOTE_SECONDS  # whoever is left is followed then
    followed.follower.run_once()
    assert followed.tables.rewrites == [4]


def test_a_node_that_is_behind_two_forks_decides_nothing() -> None:
    world = make_world(30)
    behind = ShownNode(world, "node-3", "late", lag=15)
    other = show(world, "node-2")
    mine = list(world.chain)
    world.reorganise(2, 6)
    other.manner, other.fork = "forked", list(world.chain)
    world.chain = mine
    heads = [
        NodeHead(watched, watched.node.read_head())
        for watched in (WatchedNode(node, lambda: 0.0) for node in (behind, show(world), other))
    ]
    choice = choose_head(heads, None)
    assert choice is not None
    assert choice.node.node is other


def test_a_node_that_claims_blocks_it_does_not_have_only_delays() -> None:
    class Boaster(ShownNode):
        def read_head(self) -> ChainLink:
            link = super().read_head()
            return link._replace(number=link.number + 1_000_000)

    world = make_world(30)
    followed = Followed(world, [Boaster(world, "node-1"), show(world, "node-2")], FROM_START)
    followed.run_until(lambda outcome: outcome.stored == 29, 300)
    assert followed.hashes == chain_hashes(world)


def test_a_node_that_contradicts_itself_is_left_alone() -> None:
    class Fickle(ShownNode):
        def read_head(self) -> ChainLink:
            link = super().read_head()
            return link._replace(hash="0x" + "ab" * 32)

    world = make_world(10)
    followed = follow(world)
    world.grow(2)
    fickle = Followed(world, [Fickle(world, "node-1")], FROM_START, followed.tables)
    states = [fickle.follower.run_once().state for _ in range(LOOKS + 2)]
    assert states == ["chain_moved"] * LOOKS + ["node_failed", "no_node"]


def test_endpoints_of_another_chain_are_passed_over_until_none_is_left() -> None:
    class Foreign(ShownNode):
        def read_head(self) -> ChainLink:
            raise ChainMismatchError("a node of chain 10")

    world = make_world(10)
    followed = Followed(world, [Foreign(world, "node-1"), show(world, "node-2")], FROM_START)
    followed.run_to_head()
    alone = Followed(world, [Foreign(world, "node-1")], FROM_START)
    with pytest.raises(NonRetryableError, match="chain_mismatch: a node of chain 10"):
        alone.follower.run_once()


def test_of_two_attempts_only_the_newer_one_writes() -> None:
    world = make_world(10)
    older = follow(world)
    newer = Followed(world, [show(world)], FROM_START, older.tables)
    world.grow(1)
    assert newer.follower.run_once().state == "appended"
    world.grow(1)
    with pytest.raises(StaleFollowerError):
        older.follower.run_once()
    newer.run_to_head()
    assert newer.hashes == chain_hashes(world)


def test_a_store_that_is_away_is_waited_for_and_asked_what_became_of_the_write() -> None:
    world = make_world(10)
    tables = MemoryTables()
    away = {"after_commit"}

    def fault(point: str) -> None:
        if point in away:
            raise HotStoreUnavailableError("connection lost")

    followed = Followed(world, [show(world)], FROM_START, tables)
    followed.follower.store = MemoryStore(tables, 1, fault)
    assert followed.follower.run_once().state == "store_unavailable"
    assert tables.links
    away.clear()
    followed.run_to_head()
    assert followed.hashes == chain_hashes(world)
    assert [event.cursor for event in followed.events] == sorted({event.cursor or 0 for event in followed.events})


def test_the_next_blocks_are_read_before_a_write_and_not_again() -> None:
    world = make_world(30)
    node = show(world)
    followed = Followed(world, [node], FollowOptions(start=0, batch_blocks=5))
    assert followed.follower.run_once().last == 4
    assert node.reads == 2
    followed.run_to_head()
    assert node.reads == 6
    assert followed.hashes == chain_hashes(world)


@pytest.mark.parametrize("depth", [22, 25, 26])
def test_blocks_that_were_read_ahead_are_dropped_if_the_chain_has_moved(depth: int) -> None:
    """In the middle of them, at the first of them, and below."""
    world = make_world(30)
    followed = Followed(world, [show(world)], FollowOptions(start=0, batch_blocks=5))
    followed.follower.run_once()
    world.reorganise(depth, depth + 1)
    followed.run_to_head()
    assert followed.hashes == chain_hashes(world)
    changed = [event.invalidates for event in followed.events if event.invalidates is not None]
    assert [(one.start, one.end) for one in changed] == ([(30 - depth, 4)] if depth == 26 else [])


def test_a_node_that_fails_while_it_is_read_ahead_rests() -> None:
    world = make_world(30)
    node, other = show(world), show(world, "node-2")
    followed = Followed(world, [node, other], FollowOptions(start=0, batch_blocks=5))
    followed.follower.run_once()
    node.failing = 1.0
    followed.follower.run_once()
    followed.run_to_head()
    assert followed.hashes == chain_hashes(world)
