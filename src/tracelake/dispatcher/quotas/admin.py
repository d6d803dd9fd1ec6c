"""What an org may use and uses, for its people; and how the platform's operator changes it."""

from uuid import UUID

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher import audit
from tracelake.dispatcher.engine.limits import functions_key, org_key
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.quotas.checks import RECENT_DEPLOYS
from tracelake.errors import TraceError
from tracelake.model.quota import KINDS
from tracelake.wire.quotas import QuotaChange, QuotaReply, QuotaRequest, QuotaRow, QuotasReply

MAX_WEIGHT = 1000
_MOST = 2**53
_MOST_ORGS = 1000

_OWN = f"SELECT weight, {', '.join(KINDS)} FROM org_quotas WHERE org_id = $1"  # noqa: S608 - constants only

_RUNNING = "SELECT count(*) FROM tasks WHERE status = 'Running' AND org_id = $1"

_PLACES = "SELECT used FROM limits WHERE limit_key = $1 AND max_running IS NOT NULL"

_FUNCTIONS = "SELECT used FROM limits WHERE limit_key = $1"

_ORGS = "SELECT org_id, name FROM orgs ORDER BY name LIMIT $1"

_FIND_ORG = "SELECT org_id FROM orgs WHERE name = $1"

_ENSURE = "INSERT INTO org_quotas (org_id) VALUES ($1) ON CONFLICT DO NOTHING"

_SET = "UPDATE org_quotas SET {name} = $2, changed_at = trace_now() WHERE org_id = $1"

_CHANGED = "SELECT changed_at FROM org_quotas WHERE org_id = $1"


async def show_quota(connection: Connection, org_id: UUID, org: str, book: QuotaBook) -> QuotaReply:
    """What the org uses is as of the last look of this Dispatcher, a moment ago."""
    row = await connection.fetchrow(_OWN, org_id)
    own = {} if row is None else dict(row)
    quotas = book.defaults.override(own)
    deploys = await connection.fetchrow(RECENT_DEPLOYS, org_id)
    assert deploys is not None
    running = await connection.fetchval(_PLACES, org_key(org_id))
    if running is None:
        running = await connection.fetchval(_RUNNING, org_id)
    used = {
        "queued_tasks": book.queued(org_id),
        "running_tasks": running,
        "running_functions": await connection.fetchval(_FUNCTIONS, functions_key(org_id)) or 0,
        "stored_bytes": max(0, book.stored(org_id)),
        "deploys_per_hour": deploys["deploys"],
        "dry_runs_per_minute": book.dry_runs(org),
    }
    rows = []
    for kind in KINDS:
        limit: int = getattr(quotas, kind)
        spent = used.get(kind)
        over = book.holds_back(org_id) == kind or (0 < limit <= (spent or 0))
        rows.append(QuotaRow(kind=kind, limit=limit or None, used=spent, own=own.get(kind) is not None, exceeded=over))
    return QuotaReply(org=org, weight=quotas.weight, quotas=rows)


class QuotaAdmin:
    """For the platform's operator. Dispatchers follow within a second or two."""

    def __init__(self, store: Store, book: QuotaBook) -> None:
        self._store = store
        self._book = book

    async def list(self) -> QuotasReply:
        async with self._store.connection() as connection:
            orgs = await connection.fetch(_ORGS, _MOST_ORGS)
            return QuotasReply(
                orgs=[await show_quota(connection, row["org_id"], row["name"], self._book) for row in orgs]
            )

    async def change(self, request: QuotaRequest) -> QuotaChange:
        values = _checked(request)
        async with self._store.transaction() as connection:
            org_id = await connection.fetchval(_FIND_ORG, request.org)
            if org_id is None:
                raise TraceError("org_not_found", field="org")
            await connection.execute(_ENSURE, org_id)
            for name, value in values.items():
                await connection.execute(_SET.format(name=name), org_id, value)
            details = {"values": request.values, "defaults": request.defaults}
            await audit.record(connection, org_id, "platform operator", "quota.set", request.org, details)
            changed_at = await connection.fetchval(_CHANGED, org_id)
            quota = await show_quota(connection, org_id, request.org, self._book)
        return QuotaChange(quota=quota, changed_at=changed_at)


def _checked(request: QuotaRequest) -> dict[str, float | None]:
    """By column; None is back to the default."""
    quota_names = ("weight", *KINDS)
    for field, names in (("values", request.values), ("defaults", request.defaults)):
        for name in names:
            if name not in quota_names:
                expected = ", ".join(quota_names)
                raise TraceError("body_invalid", f"Expected one of {expected}; received {name!r}.", field=field)
    if not request.values and not request.defaults:
        raise TraceError("body_invalid", "Expected at least one value to change; received none.", field="values")
    twice = set(request.values) & set(request.defaults)
    if twice:
        raise TraceError(
            "body_invalid", f"`{min(twice)}` is in both values and defaults: leave one out.", field="defaults"
        )
    values: dict[str, float | None] = dict.fromkeys(request.defaults)
    for name, value in request.values.items():
        if name == "weight":
            if not 0 < value <= MAX_WEIGHT:
                raise _out_of_range(name, f"more than 0 and at most {MAX_WEIGHT}", value)
            values[name] = value
            continue
        most = 1_000_000 if name in ("running_tasks", "running_functions") else _MOST
        if not 0 <= value <= most or value != int(value):
            raise _out_of_range(name, f"a whole number from 0 (no limit) to {most}", value)
        values[name] = int(value)
    return values


def _out_of_range(name: str, expected: str, value: float) -> TraceError:
    return TraceError("body_invalid", f"`{name}`: expected {expected}; received {value:g}.", field="values")
