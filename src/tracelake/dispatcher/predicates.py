"""SQL predicates that several statements share.

Each takes the alias of its table, if it has one. The texts are those of partial indexes, so that statements find them.
"""


def is_open(alias: str = "") -> str:
    """The task is neither completed nor cancelled: what the index `tasks_live` holds."""
    return f"{_dot(alias)}status IN ('Queued', 'Running', 'Failed')"


def is_ready(alias: str = "") -> str:
    """A worker may claim the task."""
    table = _dot(alias)
    return f"{table}status = 'Queued' AND NOT {table}held"


def is_run(alias: str = "") -> str:
    """The task is the run of an always_on source, which is of no unit."""
    table = _dot(alias)
    return f"{table}edge = -1 AND {table}unit_end IS NULL AND {table}unit_key = 'run'"


def is_finally_failed(alias: str = "") -> str:
    """The task failed, no retry is due, and nobody has accepted the gap."""
    table = _dot(alias)
    return f"{table}status = 'Failed' AND {table}next_retry_at IS NULL AND {table}skipped_at IS NULL"


def is_final_error(alias: str = "") -> str:
    """The task failed with attempts left: its report said that another one would fail in the same way."""
    table = _dot(alias)
    return (
        f"({table}status = 'Failed' AND {table}next_retry_at IS NULL AND {table}outcome = 'Failed' "
        f"AND ({table}max_attempts IS NULL OR {table}attempt < {table}max_attempts))"
    )


def has_no_failures(version: str) -> str:
    """No task of the nodes of the version, a row of `dag_versions`, has finally failed: one may go back to it."""
    return f"""NOT EXISTS (
        SELECT FROM dag_version_jobs own JOIN jobs o ON o.job_id = own.job_id
        JOIN jobs same ON same.node_id = o.node_id
        JOIN tasks f ON f.job_id = same.job_id AND {is_finally_failed("f")}
        WHERE own.dag_version_id = {version}.dag_version_id)"""


def awaits_sink(alias: str = "") -> str:
    """The batch was released, and no sink has committed or rejected it."""
    table = _dot(alias)
    return f"{table}released_at IS NOT NULL AND {table}committed_at IS NULL AND {table}dead_at IS NULL"


def is_dead(alias: str = "") -> str:
    """The batch is a dead letter, and nobody has replayed or dropped it."""
    table = _dot(alias)
    return f"{table}dead_at IS NOT NULL AND {table}dropped_at IS NULL"


def lacks_rows(batch: str) -> str:
    """The batch, a row of `buffer_publishes`, is a dead letter whose rows its table is to show: those of a node that
    writes the table or is being built. A table that keeps the rows of earlier nodes, or has no writer, lacks all."""
    return f"""{is_dead(batch)} AND EXISTS (
        SELECT FROM buffered_tables written JOIN tasks wrote ON wrote.task_id = {batch}.task_id
        WHERE written.dataset_uuid = {batch}.dataset_uuid
          AND (written.on_change = 'keep' OR written.writers = '{{}}' OR wrote.node_id = ANY (written.writers)
               OR EXISTS (SELECT FROM edges built WHERE built.node_id = wrote.node_id AND built.phase = 'Staged')))"""  # noqa: S608 - constants only


def has_unit(alias: str = "") -> str:
    """The task computes a unit of its node, which other tasks may compute again."""
    table = _dot(alias)
    return f"{table}node_id IS NOT NULL AND {table}edge IS NOT NULL AND {table}unit_key IS NOT NULL"


def has_threshold(alias: str = "") -> str:
    """The row of `pressure` or `buffered_tables` has a threshold."""
    table = _dot(alias)
    return f"({table}max_depth IS NOT NULL OR {table}max_age_seconds IS NOT NULL)"


def is_current(row: str, dataset: str) -> str:
    """The generation of the row is the active one of its dataset, or the one that is being built."""
    return f"{row}.dataset_version IN ({dataset}.current_version, {dataset}.staged_version)"


def in_removed_dag(alias: str) -> str:
    """The row of `jobs`, `nodes` or `datasets` is of a DAG that was removed."""
    return f"""EXISTS (SELECT FROM dags removed WHERE removed.org_id = {alias}.org_id
        AND removed.dag_name = {alias}.dag_name AND removed.removed_at IS NOT NULL)"""


def _dot(alias: str) -> str:
    return f"{alias}." if alias else ""
