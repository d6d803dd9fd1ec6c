"""Who acts: a verified user, with the org that everything is looked up in."""

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Actor:
    subject: str
    org: str
    org_id: UUID | None
    """None while the org has nothing yet: whatever is asked for is not there."""
