"""A whole Dispatcher from its ports: the object graph, the loops, and the applications of the three listeners."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tracelake.db.transaction import Store
from tracelake.dispatcher.clock import StoreClock
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.http.app import ListenerApp
from tracelake.dispatcher.http.credentials import Gatekeeper, SecretMatcher
from tracelake.dispatcher.http.handlers import Handlers
from tracelake.dispatcher.http.health import Health
from tracelake.dispatcher.http.routing import Listener, Router
from tracelake.dispatcher.http.table import build_routes, routes_of
from tracelake.dispatcher.invoke.loop import Invocations
from tracelake.dispatcher.jobs import Definitions
from tracelake.dispatcher.lifecycle.calls import Answer, Call
from tracelake.dispatcher.lifecycle.commit import LifecycleCommit
from tracelake.dispatcher.lifecycle.group import GroupCommit
from tracelake.dispatcher.loops.gauges import Gauges
from tracelake.dispatcher.loops.reaper import BATCH as REAPER_BATCH
from tracelake.dispatcher.loops.reaper import Reaper
from tracelake.dispatcher.loops.reconciler import Reconciler
from tracelake.dispatcher.loops.retry import BATCH as RETRY_BATCH
from tracelake.dispatcher.loops.retry import RetryScheduler
from tracelake.dispatcher.loops.timer import Loop
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.outbox.relay import Relay
from tracelake.dispatcher.service import DispatcherService
from tracelake.dispatcher.tokens.mint import TokenMint
from tracelake.dispatcher.tokens.verify import KeyDirectory, TokenVerifier
from tracelake.dispatcher.users import UserVerifier
from tracelake.ports import Invoker, ObjectStore, Queue, Signer

GAUGE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ports:
    """What a Dispatcher is given; the composition root chooses the adapters."""

    store: Store
    queue: Queue
    objects: ObjectStore
    invoker: Invoker
    task_signer: Signer
    user_signer: Signer
    worker_secret: SecretMatcher
    service_secret: SecretMatcher


class Dispatcher:
    def __init__(self, ports: Ports, config: DispatcherConfig) -> None:
        self.ports = ports
        self.metrics = Metrics()
        self.clock = StoreClock()
        definitions = Definitions()
        keys = KeyDirectory(ports.task_signer)
        verifier = TokenVerifier(keys, config.issuer)
        self.relay = Relay(ports.store, ports.queue, config, self.metrics)
        self.reaper = Reaper(ports.store, config, self.metrics, self.clock)
        self.retries = RetryScheduler(ports.store, definitions, self.metrics)
        self.reconciler = Reconciler(ports.store, ports.queue, config, self.metrics)
        self.gauges = Gauges(ports.store, ports.queue, self.metrics)
        self._relay_loop = Loop(
            "relay",
            self.relay.run_once,
            every_seconds=config.relay_poll_seconds,
            metrics=self.metrics,
            full_round=config.relay_batch,
        )
        # New work needs no poll: the process that writes outbox rows wakes its own loops.
        self._commit = LifecycleCommit(ports.store, definitions, config, self.clock, self._wake)
        self.group = GroupCommit(
            self._commit_counted, max_batch=config.group_commit_max, lanes=config.group_commit_lanes
        )
        mint = TokenMint(keys, definitions, config, verifier)
        self.invocations = Invocations(
            store=ports.store,
            group=self.group,
            definitions=definitions,
            mint=mint,
            clock=self.clock,
            invoker=ports.invoker,
            config=config,
            metrics=self.metrics,
            on_free=self._wake,
        )
        self._invoke_loop = Loop(
            "invoke", self.invocations.run_once, every_seconds=config.relay_poll_seconds, metrics=self.metrics
        )
        self.service = DispatcherService(
            store=ports.store,
            objects=ports.objects,
            group=self.group,
            definitions=definitions,
            mint=TokenMint(keys, definitions, config, verifier),
            clock=self.clock,
            config=config,
            metrics=self.metrics,
        )
        gatekeeper = Gatekeeper(
            tasks=verifier,
            users=UserVerifier(KeyDirectory(ports.user_signer), config.issuer),
            worker=ports.worker_secret,
            service=ports.service_secret,
            clock=self.clock,
            metrics=self.metrics,
        )
        handlers = Handlers(self.service, gatekeeper, keys, Health(ports.store, ports.queue))
        self.routes = build_routes(handlers)
        self.apps = {
            listener: ListenerApp(
                listener.value,
                Router(routes_of(self.routes, listener)),
                gatekeeper,
                self.metrics,
                body_max_bytes=config.body_max_bytes,
                batch_body_max_bytes=config.batch_body_max_bytes,
            )
            for listener in Listener
        }
        self.loops = [
            self._relay_loop,
            self._invoke_loop,
            Loop(
                "reaper",
                self.reaper.run_once,
                every_seconds=config.reaper_seconds,
                metrics=self.metrics,
                full_round=REAPER_BATCH,
            ),
            Loop(
                "retry", self._retry, every_seconds=config.retry_seconds, metrics=self.metrics, full_round=RETRY_BATCH
            ),
            Loop("reconciler", self._reconcile, every_seconds=config.reconcile_seconds, metrics=self.metrics),
            Loop("gauges", self.gauges.run_once, every_seconds=GAUGE_SECONDS, metrics=self.metrics),
        ]
        self._running: list[asyncio.Task[None]] = []

    def start_loops(self) -> None:
        self._running = [asyncio.create_task(loop.run(), name=loop.name) for loop in self.loops]

    async def stop(self) -> None:
        """Finish what was accepted, then let the loops end their round."""
        await self.invocations.close()
        await self.group.close()
        for loop in self.loops:
            loop.stop()
        if self._running:
            await asyncio.wait(self._running, timeout=5.0)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _commit_counted(self, calls: Sequence[Call]) -> list[Answer]:
        self.metrics.group_batches.inc()
        self.metrics.group_calls.inc(len(calls))
        return await self._commit(calls)

    async def _retry(self) -> int:
        return self._nudged(await self.retries.run_once())

    async def _reconcile(self) -> int:
        return self._nudged(await self.reconciler.run_once())

    def _nudged(self, done: int) -> int:
        if done:
            self._wake()
        return done

    def _wake(self) -> None:
        self._relay_loop.nudge()
        self._invoke_loop.nudge()
