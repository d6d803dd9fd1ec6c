"""How many outbox rows there are, counted along the partial indexes and up to a bound."""

from tracelake.dispatcher.metrics import MOST

_ORDERS = {
    "task_wakeup": "org_id, next_try_at, outbox_id",
    "buffer_batch": "org_id, next_try_at, outbox_id",
    "task_invoke": "queue, org_id, next_try_at, outbox_id",
}
"""By kind, the order of the index of its pending rows."""

_PENDING = ",\n".join(
    f"""(SELECT count(*) AS rows, min(created_at) AS oldest FROM (
            SELECT created_at FROM outbox WHERE kind = '{kind}' AND status = 'Pending'
            ORDER BY {order} LIMIT {MOST}) o) {kind}"""  # noqa: S608 - constants only
    for kind, order in _ORDERS.items()
)

# A rejected row waits behind those that are due, so beyond the bound `oldest` may leave it out until its next try.
OUTBOX_COUNTS = f"""
    SELECT least({MOST}, {" + ".join(f"{kind}.rows" for kind in _ORDERS)}) AS pending,
           least({", ".join(f"{kind}.oldest" for kind in _ORDERS)}) AS oldest, f.failed, trace_now() AS now
    FROM {_PENDING},
        (SELECT count(*) AS failed FROM (
            SELECT FROM outbox WHERE status = 'Failed' ORDER BY outbox_id LIMIT {MOST}) o) f"""  # noqa: S608
