"""A Dispatcher that kills itself at a named point: `python -m tests.faults.crashing_dispatcher`.

This process imports everything once and forks a real Dispatcher process for each line it reads, so that a restart
costs tenths of a second. The line is `POINT N`: die (SIGKILL) when POINT is reached for the N-th time (`never 0` lives
on). It answers `started PID`, and `ended` when that process is gone. Failpoints exist in the forked process alone.
"""

import asyncio
import ctypes
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support.directory_store import DirectoryStore
from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.db.transaction import Connection, Store
from tracelake.http import app
from tracelake.ports import Message
from tracelake.processes import dispatcher
from tracelake.settings import Settings
from tracelake.stack.follow import run_process

POINTS = ("before commit", "after commit", "before reply", "after publish")
_PR_SET_PDEATHSIG = 1


class Failpoints:
    def __init__(self, point: str, number: int, record: Path) -> None:
        self._point, self._number = point, number
        self._reached: Counter[str] = Counter()
        self._record = record

    def reach(self, point: str) -> None:
        self._reached[point] += 1
        if (point, self._reached[point]) == (self._point, self._number):
            os.kill(os.getpid(), signal.SIGKILL)
        with self._record.open("a") as record:
            record.write(f"{point}\n")

    def install(self) -> None:
        commit, send, publish = Store.commit, app._send, PostgresQueue.publish

        async def crashing_commit(store: Store, connection: Connection) -> None:
            # Only transactions that hold or wrote something: idle rounds of loops come and go by the clock.
            matters = await connection.fetchval("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
            if matters:
                self.reach("before commit")
            await commit(store, connection)
            if matters:
                self.reach("after commit")

        async def crashing_send(*arguments: Any) -> None:
            self.reach("before reply")
            await send(*arguments)

        async def crashing_publish(queue: PostgresQueue, messages: Sequence[Message]) -> None:
            await publish(queue, messages)
            self.reach("after publish")

        patch.object(Store, "commit", crashing_commit).start()
        patch.object(app, "_send", crashing_send).start()
        patch.object(PostgresQueue, "publish", crashing_publish).start()


def serve(point: str, number: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    settings = Settings.load()
    # Objects as files: what is killed here is the Dispatcher.
    patch.object(dispatcher, "S3ObjectStore", lambda *_: DirectoryStore(settings.layout.objects)).start()
    Failpoints(point, number, settings.home / "reached").install()
    run_process("dispatcher", settings, dispatcher.serve_listeners)


def main() -> None:
    for line in sys.stdin:
        point, _, number = line.strip().rpartition(" ")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                serve(point, int(number))
                status = 0
            except (KeyboardInterrupt, asyncio.CancelledError):
                status = 0
            except BaseException:
                traceback.print_exc()  # to whatever log the process was given; below, nobody would
            finally:
                sys.stderr.flush()
                os._exit(status)
        print(f"started {pid}", flush=True)
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
