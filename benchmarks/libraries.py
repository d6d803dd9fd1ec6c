"""Our own code against the library that one would expect: tokens (PyJWT), cron (cronsim, croniter), ABI (eth-abi).

    python -m benchmarks.libraries [--quick | --smoke]

`make bench-libraries` installs the peers into `.bench-peers` and runs this. Processor time in microseconds,
interleaved; for cron also how often the peers disagree with us when clocks change. The last line is one JSON object.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import jwt
import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.support.options import Scale, parse_scale, say
from benchmarks.support.stats import interleave
from tracelake.adapters.keyring import PemKeyring
from tracelake.catalogue.decode import TOKEN_TRANSFERS, TRANSFER_COLUMNS, built_in
from tracelake.dag.slots import ScheduleSlots
from tracelake.errors import TraceError
from tracelake.spark.abi.tokens import TransferTable, transfer_decoders
from tracelake.spark.evm.keccak import keccak256
from tracelake.tokens import jws
from tracelake.tokens.verify import KeyDirectory

_PEERS = ("cronsim", "croniter", "eth_abi")
_CLAIMS = b'{"iss":"trace","prefixes":"' + b"a" * 1200 + b'"}'
"""As long as those of a task with a few inputs."""
_CLOCK_CHANGES = [datetime(2026, 3, 28, 20, tzinfo=UTC), datetime(2026, 10, 24, 20, tzinfo=UTC)]
_SCHEDULES = ("30 2 * * *", "*/5 2 * * *", "0 */2 * * *", "*/15 * * * *", "*/5 * 2 * * *")
_ZONE = "Europe/Berlin"


async def cpu_us(subjects: Mapping[str, Callable[[], object]], rounds: int, times: int) -> dict[str, float]:
    """The median of the processor time of one call."""

    def reading(subject: Callable[[], object]) -> Callable[[], Any]:
        async def take() -> float:
            began = time.process_time()
            for _ in range(times):
                subject()
            return (time.process_time() - began) / times * 1e6

        return take

    shown = {name: reading(subject) for name, subject in subjects.items()}
    series = await interleave(shown, rounds, say, show=lambda value: f"{value:,.1f} us")
    return {name: round(values.median, 1) for name, values in series.items()}


def rejected(check: Callable[[], object]) -> None:
    try:
        check()
    except (TraceError, jwt.PyJWTError):
        return
    raise AssertionError("a forged token was accepted")


async def measure_tokens(rounds: int, times: int) -> dict[str, object]:
    say("tokens: sign, verify, and refuse one of 64 KiB that anybody may send")
    now = datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as scratch:
        ring = PemKeyring.ensure(Path(scratch) / "ring", now)
        keys, kid = KeyDirectory(ring), ring.current_kid(now)
        token, _ = keys.sign(_CLAIMS, now)
        key = keys.find(kid, now)
        assert key is not None
        private, library = ec.generate_private_key(ec.SECP256R1()), jwt.PyJWS(algorithms=["ES256"])
        assert library.decode(token, key) == _CLAIMS
        head, _, signature = token.split(".")
        forged = f"{head}.{'A' * 64_000}.{signature}"
        signing = {
            "trace": lambda: keys.sign(_CLAIMS, now),
            "pyjwt": lambda: library.encode(_CLAIMS, private, "ES256", headers={"kid": kid}),
        }
        verifying = {
            "trace": lambda: jws.verify(token, lambda _: key),
            "pyjwt": lambda: (library.get_unverified_header(token), library.decode(token, key)),
        }
        refusing = {
            "trace": lambda: rejected(lambda: jws.verify(forged, lambda _: key)),
            "pyjwt": lambda: rejected(lambda: library.decode(forged, key)),
        }
        return {
            "sign_us": await cpu_us(signing, rounds, times),
            "verify_us": await cpu_us(verifying, rounds, times),
            "refuse_64_kib_us": await cpu_us(refusing, rounds, max(1, times // 10)),
        }


async def measure_cron(rounds: int, times: int) -> dict[str, object]:
    croniter, cron_sim = import_module("croniter").croniter, import_module("cronsim").CronSim
    say("cron: the slot after an instant, and who disagrees when clocks change")
    zone = ZoneInfo(_ZONE)
    answers: dict[str, Callable[[str, datetime], datetime | None]] = {
        "trace": lambda schedule, start: ScheduleSlots.of(schedule, _ZONE).after(start),
        "cronsim": lambda schedule, start: next(cron_sim(schedule, start.astimezone(zone))).astimezone(UTC),
        "croniter": lambda schedule, start: croniter(
            schedule, start.astimezone(zone), second_at_beginning=True
        ).get_next(datetime),
    }
    start = datetime(2026, 6, 1, 12, tzinfo=UTC)
    figures = {}
    for schedule in ("30 2 * * *", "*/15 * * * *"):
        subjects = {name: partial(answer, schedule, start) for name, answer in answers.items()}
        figures[schedule] = await cpu_us(subjects, rounds, times)
    choose = random.Random(1)
    others = dict.fromkeys(("cronsim", "croniter"), 0)
    asked = 0
    for change in _CLOCK_CHANGES:
        for schedule in _SCHEDULES:
            for _ in range(times):
                instant = change + timedelta(seconds=choose.randrange(12 * 3600))
                asked += 1
                for name in others:
                    others[name] += answers[name](schedule, instant) != answers["trace"](schedule, instant)
    return {"slot_us": figures, "asked_around_changes": asked, "answered_otherwise": others}


async def measure_abi(rounds: int, logs: int) -> dict[str, float]:
    eth_abi = import_module("eth_abi")
    say(f"ABI: {logs:,} transfers of ERC-20 to columns")
    topics = {name: keccak256(built_in(name).signature.encode()) for name in TOKEN_TRANSFERS}
    word = bytes(12) + b"\7" * 20
    rows: dict[str, list[Any]] = {
        "address": [b"\1" * 20] * logs,
        "topic0": [topics["erc20.Transfer"]] * logs,
        "topic1": [word] * logs,
        "topic2": [word] * logs,
        "topic3": [None] * logs,
        "data": [number.to_bytes(32, "big") for number in range(logs)],
    }
    batch = pa.record_batch({name: pa.array(values, pa.binary()) for name, values in rows.items()})
    arrow = {"binary": pa.binary(), "string": pa.string(), "double": pa.float64(), "int": pa.int32()}
    schema = pa.schema([(name, arrow[kind]) for name, kind in TRANSFER_COLUMNS])
    table = TransferTable(transfer_decoders(topics), schema)

    def library() -> object:
        decoded = [
            (
                *eth_abi.decode(["address"], sender),
                *eth_abi.decode(["address"], receiver),
                *eth_abi.decode(["uint256"], data),
            )
            for sender, receiver, data in zip(rows["topic1"], rows["topic2"], rows["data"], strict=True)
        ]
        return pa.array([str(amount) for _, _, amount in decoded])

    subjects = {"trace": lambda: list(table.decode(iter([batch]))), "eth_abi": library}
    assert sum(part.num_rows for part in table.decode(iter([batch]))) == logs
    return {name: round(value / logs, 2) for name, value in (await cpu_us(subjects, rounds, 1)).items()}


async def measure(scale: Scale) -> dict[str, object]:
    rounds, times = scale.pick(10, 5, 1), scale.pick(300, 100, 10)
    return {
        "benchmark": "libraries",
        "rounds": rounds,
        "tokens": await measure_tokens(rounds, times),
        "cron": await measure_cron(rounds, times),
        "abi_us_per_log": await measure_abi(rounds, scale.pick(20_000, 5_000, 100)),
    }


def main() -> None:
    scale = parse_scale(__doc__)
    missing = [name for name in _PEERS if find_spec(name) is None]
    if missing:
        sys.exit(f"{', '.join(missing)} not installed here: run `make bench-libraries`")
    print(json.dumps(asyncio.run(measure(scale))))


if __name__ == "__main__":
    main()
