"""What is known of the workers of a runtime: which tasks they have, and when they last took one.

Workers are not registered anywhere; what they do is seen by the tasks that run. Only those of the caller's org are
told.
"""

from datetime import datetime
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.views.words import counted, since
from tracelake.dispatcher.why import facts
from tracelake.model.runtime import BUILT_IN

Steps = tuple[tuple[str, str], ...]


async def look(connection: Connection, org_id: UUID, runtime: str, now: datetime) -> tuple[str, Steps]:
    """A sentence for whatever waits there, and what to do."""
    jobs = await facts.read_running(connection, org_id, runtime)
    here = runtime in BUILT_IN.started_here()  # no worker has to be started for it
    add = () if here else (("start one more worker", f"trace worker --runtime {runtime}"),)
    if not jobs:
        stack = ("see the parts of the stack", "trace status")
        return f"No task of {runtime} is running now: see whether a worker is there.", (stack, *add)
    total, most = sum(row["number"] for row in jobs), jobs[0]
    name = f"{most['dag_name']}/{most['name']}"
    claimed = since(max(row["newest"] for row in jobs), now)
    if total == 1:
        text = f"1 task of {runtime} is running now, of {name}; it was claimed {claimed} ago."
    else:
        share = "all" if len(jobs) == 1 else f"{most['number']:,}"
        text = (
            f"{counted(total, 'task')} of {runtime} are running now, {share} of them {name}; "
            f"the newest was claimed {claimed} ago."
        )
    return text, (("see what runs", "trace tasks --status Running"), *add)
