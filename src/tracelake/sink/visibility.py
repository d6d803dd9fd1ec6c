"""Rows of a table that are visible, and those that are not.

The table of a dataset holds exactly the visible rows, one for each key, so readers need no condition. A second table
(`hidden_{uuid}`) holds the others: rows that lost against a row with the same key and come back if that one goes
(`_counts`), rows of units that are not complete yet, and rows of writers that are not active. Rows move between the two
in the transaction that changes what is visible.
"""

from collections.abc import Sequence
from uuid import UUID

from tracelake.model.buffered import hidden_name, quoted, table_name
from tracelake.rows.values import kind_of
from tracelake.sink.conflicts import best_first, wins
from tracelake.sink.outcomes import Loaded
from tracelake.storage.data_connection import Run
from tracelake.wire.buffers import BufferedDataset

_COLUMNS = """
    SELECT attname::text FROM pg_attribute
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
_OURS = ("org_id", "_task_id", "_publish_seq", "_line")


class VisibleRows:
    """Moves rows of one dataset in one transaction, whose commit has the number `commit_seq`."""

    def __init__(self, run: Run, dataset: BufferedDataset, commit_seq: int) -> None:
        self._run = run
        self._dataset = dataset
        self._commit_seq = commit_seq
        self._table = quoted(table_name(dataset.dataset_uuid))
        self._hidden = quoted(hidden_name(dataset.dataset_uuid))
        self._key = ["org_id", *map(quoted, dataset.schema.unique)]
        self._has_keys = False
        self.gone_commits: set[int] = set()
        """Commits that rows belonged to which went, because their unit was computed again or their writer changed."""

    # -- rows of staging tables

    def merge_unitless(self, staging: str, loaded: Sequence[Loaded], *, mixed: bool) -> None:
        """Merge rows that nobody ever takes back. `mixed`: the table also has rows of units, to which some may lose."""
        if mixed:
            self._keep_lost(staging, loaded)
        declared = self._declared()
        changes = [name for name in declared if name not in self._key]
        changes += ["_task_id", "_publish_seq", "_line", "_commit_seq"]
        key = _aliased("s", self._key[1:])
        self._run(
            f"""
            INSERT INTO {self._table} AS t ({self._columns()}, _commit_seq)
            SELECT DISTINCT ON (p.org_id, {key}) {self._staged_values()}, $4::bigint
            FROM {_staged(staging)}
            ORDER BY p.org_id, {key}, {best_first(self._dataset, "s", staged=True)}
            ON CONFLICT ({", ".join(self._key)}) DO UPDATE
            SET {", ".join(f"{name} = excluded.{name}" for name in changes)}
            WHERE {wins(self._dataset, "excluded", over="t")}""",  # noqa: S608 - quoted
            *_batches(loaded),
            self._commit_seq,
        )

    def _keep_lost(self, staging: str, loaded: Sequence[Loaded]) -> None:
        """Keep rows that lose against a row of a unit, which may go; of those with one key the best is enough."""
        columns = self._columns()
        staged = f"""
            SELECT DISTINCT ON (p.org_id, {_aliased("s", self._key[1:])}) {self._staged_values(with_names=True)}
            FROM {_staged(staging)}
            ORDER BY p.org_id, {_aliased("s", self._key[1:])}, {best_first(self._dataset, "s", staged=True)}"""  # noqa: S608
        self._run(
            f"""
            WITH staged AS ({staged}), pruned AS (
                DELETE FROM {self._hidden} h USING staged s
                WHERE {self._same_key("h", "s")} AND {wins(self._dataset, "s", over="h")} AND NOT {self._has_unit("h")})
            INSERT INTO {self._hidden} ({columns}, _counts)
            SELECT {_aliased("s", self._names())}, true FROM staged s JOIN {self._table} t ON {self._same_key("t", "s")}
            WHERE {wins(self._dataset, "t", over="s")} AND {self._has_unit("t")} AND NOT EXISTS (
                SELECT FROM {self._hidden} h
                WHERE {self._same_key("h", "s")} AND {wins(self._dataset, "h", over="s")} AND NOT {self._has_unit("h")})
            ON CONFLICT (_publish_seq, _line) DO NOTHING""",  # noqa: S608 - quoted
            *_batches(loaded),
        )

    def show(self, staging: str, loaded: Sequence[Loaded]) -> None:
        """Let staged rows of units compete for their keys. Most keys are new, so that is tried first."""
        arguments = _batches(loaded)
        ((inserted,),) = self._run(
            f"""
            WITH inserted AS (
                INSERT INTO {self._table} ({self._columns()}, _commit_seq)
                SELECT {self._staged_values()}, $4::bigint FROM {_staged(staging)}
                ON CONFLICT ({", ".join(self._key)}) DO NOTHING RETURNING 1)
            SELECT count(*) FROM inserted""",  # noqa: S608 - quoted
            *arguments,
            self._commit_seq,
        )
        if inserted == sum(item.rows for item in loaded):
            return
        # Some keys are taken, by other rows or by rows of these batches: the rest competes from the hidden table.
        self._run(
            f"""
            INSERT INTO {self._hidden} ({self._columns()}, _counts)
            SELECT DISTINCT ON (s._publish_seq, s._line) {self._staged_values()}, true FROM {_staged(staging)}
            WHERE NOT EXISTS (
                SELECT FROM {self._table} t WHERE {self._same_staged_key("t")}
                AND t._publish_seq = s._publish_seq AND t._line = s._line)
            ORDER BY s._publish_seq, s._line""",  # noqa: S608 - quoted
            *arguments,
        )
        self._note_hidden("_publish_seq = ANY ($1::bigint[])", arguments[0])

    def hide(self, staging: str, loaded: Sequence[Loaded]) -> None:
        """Keep staged rows for later."""
        self._run(
            f"""
            INSERT INTO {self._hidden} ({self._columns()}, _counts)
            SELECT DISTINCT ON (s._publish_seq, s._line) {self._staged_values()}, false FROM {_staged(staging)}
            ORDER BY s._publish_seq, s._line""",  # noqa: S608 - quoted
            *_batches(loaded),
        )

    # -- rows that were loaded before

    def remove(self, batches: Sequence[int]) -> None:
        """Delete the rows of these batches; others may take their keys."""
        self._open_keys()
        keys = ", ".join(self._key)
        commits = self._run(
            f"""
            WITH gone AS (DELETE FROM {self._table} WHERE _publish_seq = ANY ($1::bigint[])
                          RETURNING {keys}, _commit_seq),
            noted AS (INSERT INTO trace_keys SELECT {keys} FROM gone)
            SELECT DISTINCT _commit_seq FROM gone""",  # noqa: S608 - quoted
            batches,
        )
        self.gone_commits.update(number for (number,) in commits)
        self._run(f"DELETE FROM {self._hidden} WHERE _publish_seq = ANY ($1::bigint[])", batches)  # noqa: S608

    def uncover(self, batches: Sequence[int]) -> None:
        """Let hidden rows of these batches compete."""
        condition = "_publish_seq = ANY ($1::bigint[])"
        self._run(f"UPDATE {self._hidden} SET _counts = true WHERE {condition}", batches)  # noqa: S608 - quoted
        self._note_hidden(condition, batches)

    # -- rows of writers

    def withdraw(self, nodes: Sequence[UUID]) -> None:
        """Hide all rows of these writers; others may take their keys."""
        self._open_keys()
        keys, listed = ", ".join(self._key), ", ".join(self._stored_columns())
        parts, writers = self._parts_of("$1"), [str(node_id) for node_id in nodes]
        self._run(
            f"UPDATE {self._hidden} SET _counts = false WHERE _counts AND _publish_seq IN ({parts})",  # noqa: S608
            writers,
        )
        commits = self._run(
            f"""
            WITH gone AS (DELETE FROM {self._table} WHERE _publish_seq IN ({parts}) RETURNING *),
            noted AS (INSERT INTO trace_keys SELECT {keys} FROM gone),
            moved AS (INSERT INTO {self._hidden} ({listed}, _counts) SELECT {listed}, false FROM gone)
            SELECT DISTINCT _commit_seq FROM gone""",  # noqa: S608 - quoted
            writers,
        )
        self.gone_commits.update(number for (number,) in commits)

    def admit(self, nodes: Sequence[UUID]) -> None:
        """Let the rows of these writers compete, those of complete units. Most keys are free, so that is tried first.

        A free key that a hidden row of another writer competes for was taken by a row that `withdraw` has noted."""
        self._open_keys()
        keys, listed = ", ".join(self._key), ", ".join(self._stored_columns())
        self._run(
            f"""
            WITH moved AS (
                DELETE FROM {self._hidden} WHERE _publish_seq IN ({self._parts_of("$1")} AND complete) RETURNING *),
            inserted AS (
                INSERT INTO {self._table} ({listed}, _commit_seq) SELECT {listed}, {self._commit_seq} FROM moved
                ON CONFLICT ({keys}) DO NOTHING RETURNING _publish_seq, _line),
            others AS MATERIALIZED (
                SELECT m.* FROM moved m LEFT JOIN inserted i USING (_publish_seq, _line) WHERE i._line IS NULL),
            returned AS (INSERT INTO {self._hidden} ({listed}, _counts) SELECT {listed}, true FROM others)
            INSERT INTO trace_keys SELECT {keys} FROM others""",  # noqa: S608 - quoted
            [str(node_id) for node_id in nodes],
        )

    def delete(self, nodes: Sequence[UUID]) -> None:
        """Delete hidden rows of these writers, and forget their units."""
        writers = [str(node_id) for node_id in nodes]
        self._run(f"DELETE FROM {self._hidden} WHERE _publish_seq IN ({self._parts_of('$1')})", writers)  # noqa: S608
        self._run(
            "DELETE FROM buffer_parts WHERE dataset_uuid = $2::text::uuid AND node_id = ANY ($1::text[]::uuid[])",
            writers,
            str(self._dataset.dataset_uuid),
        )

    # -- winners

    def settle(self) -> None:
        """Give each key that may have another winner by now its winner."""
        if not self._has_keys:
            return
        columns = self._stored_columns()
        listed, keys = ", ".join(columns), ", ".join(self._key)
        self._run("ANALYZE trace_keys")
        self._run(
            f"""
            CREATE TEMPORARY TABLE trace_winners ON COMMIT DROP AS
            SELECT DISTINCT ON ({_aliased("h", self._key)}) {_aliased("h", columns)}
            FROM (SELECT DISTINCT * FROM trace_keys) k JOIN {self._hidden} h ON {self._same_key("h", "k")} AND h._counts
            ORDER BY {_aliased("h", self._key)}, {best_first(self._dataset, "h")}"""  # noqa: S608 - quoted
        )
        self._run(
            f"""
            DELETE FROM trace_winners w USING {self._table} t
            WHERE {self._same_key("t", "w")} AND NOT ({wins(self._dataset, "w", over="t")})"""  # noqa: S608 - quoted
        )
        self._run("ANALYZE trace_winners")
        self._run(
            f"""
            DELETE FROM {self._hidden} h USING trace_winners w
            WHERE h._publish_seq = w._publish_seq AND h._line = w._line"""  # noqa: S608 - quoted
        )
        self._run(
            f"""
            INSERT INTO {self._hidden} ({listed}, _counts)
            SELECT {_aliased("t", columns)}, true
            FROM {self._table} t JOIN trace_winners w ON {self._same_key("t", "w")}"""  # noqa: S608 - quoted
        )
        changes = ", ".join(f"{name} = excluded.{name}" for name in [*columns, "_commit_seq"] if name not in self._key)
        self._run(
            f"""
            INSERT INTO {self._table} ({listed}, _commit_seq)
            SELECT {listed}, {self._commit_seq} FROM trace_winners
            ON CONFLICT ({keys}) DO UPDATE SET {changes}"""  # noqa: S608 - quoted
        )

    def _open_keys(self) -> None:
        if not self._has_keys:
            keys = ", ".join(self._key)
            self._run(
                f"""CREATE TEMPORARY TABLE trace_keys ON COMMIT DROP AS
                    SELECT {keys} FROM {self._table} WITH NO DATA"""  # noqa: S608 - quoted
            )
            self._has_keys = True

    def _note_hidden(self, condition: str, *arguments: object) -> None:
        self._open_keys()
        keys = ", ".join(self._key)
        self._run(f"INSERT INTO trace_keys SELECT {keys} FROM {self._hidden} WHERE {condition}", *arguments)  # noqa: S608

    # -- parts of statements

    def _stored_columns(self) -> list[str]:
        """Columns that both tables have; a newer schema may have more than the declared ones."""
        return [quoted(name) for (name,) in self._run(_COLUMNS, self._table) if name != "_commit_seq"]

    def _parts_of(self, nodes: str) -> str:
        """Selects the batches of the writers that the parameter holds."""
        return f"""SELECT publish_seq FROM buffer_parts
            WHERE dataset_uuid = '{self._dataset.dataset_uuid}' AND node_id = ANY ({nodes}::text[]::uuid[])"""  # noqa: S608

    def _declared(self) -> list[str]:
        return [quoted(column.name) for column in self._dataset.schema.columns]

    def _names(self) -> list[str]:
        return [*_OURS, *self._declared()]

    def _columns(self) -> str:
        return ", ".join(self._names())

    def _staged_values(self, *, with_names: bool = False) -> str:
        kinds = [kind_of(column) for column in self._dataset.schema.columns]
        values = ["p.org_id", "p.task_id", "s._publish_seq", "s._line"]
        values += [f"s.{name}{kind.cast}" for name, kind in zip(self._declared(), kinds, strict=True)]
        if with_names:
            values = [f"{value} AS {name}" for value, name in zip(values, self._names(), strict=True)]
        return ", ".join(values)

    def _same_key(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{name} = {other}.{name}" for name in self._key)

    def _same_staged_key(self, row: str) -> str:
        kinds = {quoted(column.name): kind_of(column) for column in self._dataset.schema.columns}
        same = [f"{row}.{name} = s.{name}{kinds[name].cast}" for name in self._key[1:]]
        return " AND ".join([f"{row}.org_id = p.org_id", *same])

    def _has_unit(self, row: str) -> str:
        part = f"b.dataset_uuid = '{self._dataset.dataset_uuid}' AND b.publish_seq = {row}._publish_seq"
        return f"EXISTS (SELECT FROM buffer_parts b WHERE {part})"


def _staged(staging: str) -> str:
    """The rows of the batches that `_batches` gives as $1 to $3."""
    return f"""{staging} s
        JOIN unnest($1::bigint[], $2::text[]::uuid[], $3::text[]::uuid[]) AS p(publish_seq, org_id, task_id)
          ON p.publish_seq = s._publish_seq"""


def _batches(loaded: Sequence[Loaded]) -> tuple[list[int], list[str], list[str]]:
    batches = [item.batch for item in loaded]
    return (
        [batch.publish_seq for batch in batches],
        [str(batch.org_id) for batch in batches],
        [str(batch.producer.task_id) for batch in batches],
    )


def _aliased(row: str, columns: Sequence[str]) -> str:
    return ", ".join(f"{row}.{name}" for name in columns)
