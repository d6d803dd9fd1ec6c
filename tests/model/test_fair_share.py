"""Weighted fair queueing, against any interleaving of arrivals, turns and ends."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tracelake.model.fair_share import FairShares, OrgBacklog

GROUPS = ("a", "b", "c", "d")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from(GROUPS), st.integers(1, 50)),
        st.tuples(st.just("receive"), st.just(""), st.integers(1, 8)),
        st.tuples(st.just("end"), st.sampled_from(GROUPS), st.integers(1, 8)),
    ),
    max_size=80,
)


@given(steps, st.fixed_dictionaries({group: st.sampled_from([1.0, 1.0, 2.0, 0.5]) for group in GROUPS}))
def test_no_group_waits_for_more_than_its_share(program: list[tuple[str, str, int]], weights: dict[str, float]) -> None:
    """A group with a backlog that holds nothing: between two turns of its own, or since its backlog began, each other
    group that holds nothing has had no more turns than the weights say, and one."""
    shares = FairShares()
    due: Counter[str] = Counter()
    held: Counter[str] = Counter()
    passed: dict[str, Counter[str]] = {group: Counter() for group in GROUPS}
    for kind, group, number in program:
        if kind == "arrive":
            if not due[group]:
                passed[group].clear()
            due[group] += number
        elif kind == "end":
            held[group] -= min(held[group], number)
        else:
            for _ in range(number):
                backlogs = [OrgBacklog(name, held[name], weights[name]) for name in GROUPS if due[name]]
                allotted = shares.allot(backlogs, 1)
                if not backlogs:
                    assert allotted == {}
                    break
                ((turn, slots),) = allotted.items()
                assert slots == 1
                shares.charge(allotted, weights)
                for item in backlogs:
                    other = item.group
                    if other == turn or held[other]:
                        passed[other].clear()
                        continue
                    assert not held[turn], "a group without a slot comes before one that has some"
                    passed[other][turn] += 1
                    assert passed[other][turn] <= weights[turn] / weights[other] + 1
                due[turn] -= 1
                held[turn] += 1


@given(
    st.dictionaries(st.sampled_from(GROUPS), st.tuples(st.integers(0, 20), st.sampled_from([0.5, 1.0, 3.0]))),
    st.integers(1, 40),
)
def test_slots_are_levelled_by_weight(groups: dict[str, tuple[int, float]], limit: int) -> None:
    backlogs = [OrgBacklog(name, held, weight) for name, (held, weight) in groups.items()]
    allotted = FairShares().allot(backlogs, limit)
    assert sum(allotted.values()) == (limit if backlogs else 0)
    for served in backlogs:
        slots = allotted.get(served.group, 0)
        for other in backlogs:
            if slots and served.in_flight + slots > 1:
                has = other.in_flight + allotted.get(other.group, 0)
                assert has, "each group has one before another has two"
                assert (served.in_flight + slots - 1) / served.weight <= has / other.weight


def test_an_allotment_of_many_is_as_many_turns() -> None:
    at_once, one_by_one = FairShares(), FairShares()
    backlogs = [OrgBacklog("a", 0, 1.0), OrgBacklog("b", 0, 2.0), OrgBacklog("c", 3, 1.0)]
    turns: Counter[str] = Counter()
    for _ in range(20):
        now = [OrgBacklog(item.group, item.in_flight + turns[item.group], item.weight) for item in backlogs]
        allotted = one_by_one.allot(now, 1)
        one_by_one.charge(allotted, {item.group: item.weight for item in backlogs})
        turns.update(allotted)
    assert at_once.allot(backlogs, 20) == turns


def test_a_group_that_was_idle_has_saved_up_nothing() -> None:
    shares = FairShares()
    for _ in range(1000):
        shares.charge({"busy": 1}, {})
    turns: list[str] = []
    for _ in range(20):
        allotted = shares.allot([OrgBacklog("busy", 0), OrgBacklog("new", 0)], 1)
        shares.charge(allotted, {})
        turns += allotted
    assert Counter(turns) == {"busy": 10, "new": 10}
    assert shares._clocks.keys() <= {"busy", "new"}
