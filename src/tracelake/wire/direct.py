"""Tables in Postgres data that tasks of trusted operators write themselves."""

from uuid import UUID

import msgspec

from tracelake.model.dag import Schema


class DirectTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="direct"):
    """A table that one job writes directly, with the newest activated schema, which fits the rows of every generation.

    Its rows are in the order of their position: the first column of `unique`, a whole number, such as a block number.
    """

    dataset_uuid: UUID
    org_id: UUID
    org: str
    name: str
    schema: Schema
    revision: int = 0
    """Grows with every change: of two declarations of one table the one with the higher revision is valid."""
    boundary: int | None = None
    """Of a live dataset: rows up to it are in files."""

    @property
    def position(self) -> str:
        """The column by which ranges of rows are replaced and read."""
        return self.schema.unique[0]
