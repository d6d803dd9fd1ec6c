"""Whales: the few addresses that sent most of each ERC-20 token in a range of blocks.

It is called once for each unit of the dataset `transfers`. For each token it publishes the largest senders, as many as
it takes to reach `percent` of all that was sent; amounts are exact, however large.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tracelake.sdk import FunctionTask, ResultTooLargeError, handler

QUERY = """
SELECT token, from_address AS sender, amount_string AS amount
FROM transfers
WHERE standard = 'erc20' AND hex(from_address) <> repeat('0', 40) AND block_number BETWEEN $first AND $last"""


def read_transfers(task: FunctionTask, first: int, last: int) -> list[dict[str, Any]]:
    """In halves, if they are more than a reply holds."""
    try:
        return task.query(QUERY, {"first": first, "last": last})
    except ResultTooLargeError:
        if first == last:
            raise
    middle = (first + last) // 2
    return read_transfers(task, first, middle) + read_transfers(task, middle + 1, last)


def find_whales(volumes: Counter[str], percent: int) -> Iterator[tuple[int, str, int]]:
    """Place, address and amount of the largest senders."""
    total, reached = sum(volumes.values()), 0
    for place, (address, amount) in enumerate(sorted(volumes.items(), key=lambda item: (-item[1], item[0])), start=1):
        if 100 * reached >= percent * total:
            return
        yield place, address, amount
        reached += amount


@handler
def handle(task: FunctionTask) -> None:
    unit = task.inputs[0].unit
    volumes_by_token: dict[str, Counter[str]] = {}
    for row in read_transfers(task, unit["start"], unit["end"]):
        volumes_by_token.setdefault(row["token"], Counter())[row["sender"]] += int(row["amount"])
    # The key is the unit, the token and the place: a task that is tried again publishes the same rows.
    rows = [
        {
            "first_block": unit["start"],
            "token": token,
            "place": place,
            "address": address,
            "amount": str(amount),
        }
        for token, volumes in sorted(volumes_by_token.items())
        for place, address, amount in find_whales(volumes, task.config["percent"])
    ]
    task.publish(rows, key=["first_block", "token", "place"])
    task.log("whales", tokens=len(volumes_by_token), whales=len(rows))
