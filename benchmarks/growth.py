"""Does stored history slow the hot path? Task cycles on an empty store and on one with a million finished tasks.

Two stacks run side by side and are measured in turns; the last line is one JSON object. `--tasks N` changes the amount.
"""

import asyncio
import json
import time

import asyncpg
import uvloop

from benchmarks.support.cycles import BatchCycles, make_job
from benchmarks.support.options import make_parser, parse, say
from benchmarks.support.stack import BenchStack
from benchmarks.support.stats import interleave, ratio
from tracelake.wire.platform import JobReply

# As the lifecycle leaves them: claimed once, completed, one routed event each, spread over the last 30 days.
_FINISHED_TASKS = """
    INSERT INTO tasks (task_id, org_id, job_id, status, attempt, max_attempts, outcome, lease_token, claimed_at,
                       worker_id, finished_at, inputs, created_at)
    SELECT uuidv7(-age), $1, $2, 'Completed', 1, 3, 'Completed', uuidv4(), trace_now() - age,
           'history', trace_now() - age, '[]', trace_now() - age
    FROM (SELECT interval '30 days' * (1 - n / $3::float8) AS age FROM generate_series(1, $3::int) AS n) AS history"""

_THEIR_EVENTS = """
    INSERT INTO events (org_id, producer, attempt, dataset_uuid, dataset_version, unit, cursor, state, routed_seq,
                        created_at)
    SELECT org_id, task_id::text, 1, $1, $2, 'c:' || n, n, 'Routed', nextval('events_routed_seq'), created_at
    FROM (SELECT *, row_number() OVER (ORDER BY task_id) AS n FROM tasks WHERE status = 'Completed') AS t"""


async def fill(stack: BenchStack, job: JobReply, count: int) -> None:
    connection = await asyncpg.connect(stack.state_dsn)
    started = time.perf_counter()
    try:
        await connection.execute(_FINISHED_TASKS, job.org_id, job.job_id, count, timeout=900)
        output = job.outputs[0]
        await connection.execute(_THEIR_EVENTS, output.dataset_uuid, output.dataset_version, timeout=900)
        await connection.execute("VACUUM ANALYZE tasks, events", timeout=900)
        await connection.execute("CHECKPOINT")
    except asyncpg.InsufficientPrivilegeError:
        pass  # only the checkpoint needs more than the owner has; it would merely come later
    finally:
        await connection.close()
    say(f"stored {count:,} finished tasks in {time.perf_counter() - started:.0f} s")


async def measure(
    empty: BenchStack, full: BenchStack, count: int, *, rounds: int, cycles_a_round: int
) -> dict[str, object]:
    subjects = {}
    closing = []
    for name, stack in (("empty", empty), ("full", full)):
        clients = stack.clients()
        closing.append(clients)
        job = await make_job(clients, "growth")
        if stack is full:
            await fill(stack, job, count)
        cycles = BatchCycles(clients, job, "growth", in_flight=8, size=32)
        await cycles.rate(cycles_a_round)
        subjects[name] = lambda cycles=cycles: cycles.rate(cycles_a_round)
    series = await interleave(subjects, rounds, say)
    await asyncio.gather(*(clients.close() for clients in closing))
    by_round = ratio(series["full"], series["empty"])
    return {
        "benchmark": "growth",
        "finished_tasks": count,
        "rounds": rounds,
        "empty_per_s": round(series["empty"].median),
        "full_per_s": round(series["full"].median),
        "ratio": round(by_round.median, 3),
        "spread": by_round.spread,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--tasks", type=int, help="finished tasks to store (default: 1,000,000)")
    options = parse(parser)
    count = options.more.tasks or options.scale.pick(1_000_000, 200_000, 2_000)
    rounds, cycles = options.scale.pick((10, 4800), (3, 4800), (1, 320))
    with BenchStack() as empty, BenchStack() as full:
        result = uvloop.run(measure(empty, full, count, rounds=rounds, cycles_a_round=cycles))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
