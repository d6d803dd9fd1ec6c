"""eth_getLogs against a plain filter over the receipts."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.chain import recorded
from tracelake.demo.chain import methods as module
from tracelake.demo.chain.head import Visible
from tracelake.demo.chain.methods import Methods
from tracelake.demo.chain.rpc import ChainRpcError
from tracelake.demo.chain.store import ChainStore

BLOCKS = 500
HEAD = 449
LOGS = [log for one in recorded(BLOCKS) for receipt in one.receipts for log in receipt["logs"]]
_TOPICS = sorted({topic for log in LOGS for topic in log["topics"]})
_ADDRESSES = sorted({log["address"] for log in LOGS})
_HASHES = [one.block["hash"] for one in recorded(BLOCKS)][: HEAD + 1]


@pytest.fixture(scope="module", name="node")
def _node() -> Methods:
    store = ChainStore.load(recorded(BLOCKS), chain_id="0x1", client="a node")
    return Methods(store, Visible(HEAD + 1, of=BLOCKS))


def _plain(wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """What the filter means, written as slowly and plainly as can be."""
    found = []
    for log in LOGS:
        number = int(log["blockNumber"], 16)
        if "blockHash" in wanted:
            if log["blockHash"] != wanted["blockHash"].lower():
                continue
        elif not _number(wanted.get("fromBlock")) <= number <= _number(wanted.get("toBlock")):
            continue
        addresses = wanted.get("address")
        if isinstance(addresses, str):
            addresses = [addresses]
        if addresses and log["address"] not in [address.lower() for address in addresses]:
            continue
        places = wanted.get("topics") or []
        if len(places) <= len(log["topics"]) and all(map(_place, places, log["topics"])):
            found.append(log)
    return found


def _place(place: Any, topic: str) -> bool:
    if place is None or place == []:
        return True
    return topic in place if isinstance(place, list) else topic == place


def _number(given_number: str | None) -> int:
    if given_number in (None, "latest", "safe", "finalized", "pending"):
        return HEAD
    return 0 if given_number == "earliest" else int(given_number or "", 16)


_FREQUENT = [LOGS[-1]["topics"][0], *_TOPICS[-3:]]
_TOPIC = st.sampled_from(_TOPICS) | st.sampled_from(_FREQUENT)
_PLACES = st.lists(st.none() | _TOPIC | st.lists(_TOPIC, max_size=4), max_size=4) | st.sampled_from(LOGS).map(
    lambda log: list(log["topics"])
)
_WHO = st.sampled_from(_ADDRESSES) | st.lists(st.sampled_from([*_ADDRESSES, _ADDRESSES[0].upper().replace("X", "x")]))
_OTHER = {"address": _WHO, "topics": _PLACES}
_TAGS = st.sampled_from(["latest", "safe", "pending"])
_RANGES = (
    st.tuples(st.integers(0, HEAD), st.integers(0, HEAD))
    .map(sorted)
    .flatmap(
        lambda ends: st.fixed_dictionaries(
            {"fromBlock": st.just(hex(ends[0])), "toBlock": st.just(hex(ends[1])) | _TAGS}, optional=_OTHER
        )
    )
)
_OPEN = st.fixed_dictionaries({}, optional={"fromBlock": st.just("earliest") | _TAGS, **_OTHER})
_ONE = st.fixed_dictionaries({"blockHash": st.sampled_from(_HASHES)}, optional=_OTHER)


@settings(max_examples=150, deadline=None)
@given(wanted=_RANGES | _OPEN | _ONE)
def test_the_answer_is_that_of_a_plain_filter(node: Methods, wanted: dict[str, Any]) -> None:
    assert json.loads(node.logs([wanted])) == _plain(wanted)


def test_any_among_the_choices_is_any(node: Methods) -> None:
    wanted = {"fromBlock": "earliest", "topics": [[None, _TOPICS[0]], LOGS[-1]["topics"][1]]}
    found = json.loads(node.logs([wanted]))
    assert found == _plain({**wanted, "topics": [None, LOGS[-1]["topics"][1]]})
    assert found


def test_everything_comes_in_the_order_of_the_chain(node: Methods) -> None:
    got = json.loads(node.logs([{"fromBlock": "earliest"}]))
    assert got == [log for log in LOGS if int(log["blockNumber"], 16) <= HEAD]
    assert len(got) > 1000


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"fromBlock": "0x10", "toBlock": "0xf"}, -32602),
        ({"fromBlock": hex(HEAD + 1)}, -32602),
        ({"fromBlock": "0x0", "toBlock": hex(HEAD + 1)}, -32602),
        ({"blockHash": _HASHES[0], "fromBlock": "0x0"}, -32602),
        ({"blockHash": _HASHES[0], "toBlock": "0x0"}, -32602),
        ({"blockHash": "0x" + "00" * 32}, -32000),
        ({"blockHash": recorded(BLOCKS)[HEAD + 1].block["hash"]}, -32000),
        ({"address": [_ADDRESSES[0]] * 1001}, -32602),
        ({"topics": [[_TOPICS[0]] * 1001]}, -32602),
    ],
)
def test_a_filter_that_cannot_be_answered(node: Methods, wanted: dict[str, Any], code: int) -> None:
    with pytest.raises(ChainRpcError) as refused:
        node.logs([wanted])
    assert refused.value.code == code


def test_answers_have_a_largest_size(node: Methods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILTER_LOGS", 10)
    with pytest.raises(ChainRpcError, match="more than 10 logs") as refused:
        node.logs([{"fromBlock": "earliest"}])
    assert refused.value.code == -32005
    monkeypatch.setattr(module, "MAX_FILTER_BLOCKS", 20)
    with pytest.raises(ChainRpcError, match="more than 20 blocks"):
        node.logs([{"fromBlock": "0x0", "toBlock": hex(20)}])
    node.logs([{"fromBlock": "0x0", "toBlock": hex(19), "address": "0x" + "00" * 20}])
