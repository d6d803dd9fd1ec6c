"""From the org that a token names to its id."""

from uuid import UUID

from tracelake.db.transaction import Store

_FIND = "SELECT org_id FROM orgs WHERE name = $1"


class Orgs:
    """An org's id never changes, so one that was found is remembered; one that was not may be made any moment."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids: dict[str, UUID] = {}

    async def find(self, name: str) -> UUID | None:
        org_id = self._ids.get(name)
        if org_id is None:
            async with self._store.connection() as connection:
                org_id = await connection.fetchval(_FIND, name)
            if org_id is not None:
                self._ids[name] = org_id
        return org_id
