"""`trace demo`, the command: in which order things happen, and what is left when one of them does not."""

import asyncio
import errno
import signal
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import click
import msgspec

from tracelake.cli.json_output import json_flag
from tracelake.cli.options import RANGE
from tracelake.cli.session import make_console
from tracelake.client.stack import LocalStack
from tracelake.client.user import UserClient
from tracelake.demo import DemoError, plan, questions, results, tell, watch
from tracelake.demo.directory import DemoDirectory
from tracelake.demo.function_runs import DemoFunctions
from tracelake.demo.live import LiveChapter
from tracelake.demo.screen import DemoScreen
from tracelake.demo.stack import LEASE_SECONDS, DemoStack
from tracelake.demo.table import DemoTable
from tracelake.errors import TraceError
from tracelake.settings.home import Home
from tracelake.wire.jobs import BlockRange

EXIT_INTERRUPTED = 130
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.option("--keep", is_flag=True, help="Leave the stack up at the end, and say what to try on it.")
@click.option(
    "--rpc",
    metavar="URL",
    help="A node of your own instead of the recorded chain; or a NAME, if TRACE_RPC_NAME holds the address.",
)
@click.option(
    "--blocks",
    type=RANGE,
    metavar="FIRST-LAST",
    help="Which blocks (default: the whole recording; with --rpc the last 100).",
)
@json_flag("Print one JSON object at the end; what happens goes to stderr.")
def command(keep: bool, rpc: str | None, blocks: BlockRange | None, as_json: bool) -> None:
    """Run a demonstration: from a chain to flows of tokens, on a stack of its own, while parts of it are killed.

    A recorded chain of 4,000 blocks is served as a node would. A range of it is split, read in parallel, checked, its
    token transfers decoded, and summed up per token and hour, on Spark; two jobs collect large transfers in one table
    of Postgres. On the way one of the two workers gets a SIGKILL, then the sink that fills the table. A mistake in the
    table's schema, made on purpose, fails the tasks whose rows do not fit; they are retried once it is corrected.

    Meanwhile functions in Python, JavaScript and Rust read the transfers, each run in a sandbox, and a hostile function
    tries to get out of its own. A function whose language this machine cannot run is left out; where the machine
    cannot isolate functions, none runs. The demo says so and goes on.

    Then a second DAG follows the chain live: the chain grows to its end, replaces its newest 12 blocks on the way, and
    units that are final become files. With --rpc it is followed at its real head for a minute at most.

    At the end: what was made, where it comes from, what it took, and whether it is right.

    Nothing outside a temporary directory is touched, and nothing is left running unless you say --keep. If TRACE_HOME
    names a directory that is absent or empty, the stack's home is there; one that holds a stack or other files is left
    alone. Ctrl-C, SIGTERM, or the end of its terminal stops the demo and removes everything.

    \b
    Examples:
      trace demo
      trace demo --keep
      trace demo --rpc http://127.0.0.1:8545 --blocks 1_000-1_999
      TRACE_RPC_MAINNET=https://host/KEY trace demo --rpc mainnet     # no key among the arguments

    Exit status: 0 if all of it was found to be right, 1 if not, 130 after Ctrl-C or another signal.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup, say
            signal.signal(number, _interrupt)
    screen = DemoScreen(make_console(stderr=as_json))
    try:
        demo_plan = plan.recorded(blocks) if rpc is None else plan.own(rpc, blocks)
    except DemoError as error:
        status = _refused(screen, str(error), as_json=as_json)
    else:
        status = Demo(DemoDirectory.make(), demo_plan, screen, keep=keep, as_json=as_json).run()
    click.get_current_context().exit(status)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    """Nothing disturbs the end. A closed terminal sends more than one signal, and so does a shell."""
    for number in _SIGNALS:
        with suppress(ValueError):  # not in the main thread
            signal.signal(number, signal.SIG_IGN)


def _is_hangup(error: Exception) -> bool:
    """Whether the terminal is gone: writing to it may fail before its signal arrives."""
    return isinstance(error, OSError) and error.errno == errno.EIO


def _refused(screen: DemoScreen, reason: str, *, as_json: bool) -> int:
    screen.say(f"The demo cannot run: {reason}{'' if reason.endswith('?') else '.'}", "red")
    if as_json:
        _print({"ok": False, "error": reason})
    return 1


def _print(document: dict[str, Any]) -> None:
    click.echo(msgspec.json.encode(document))


@dataclass
class Demo:
    """One run of the demo. `run` leaves a stack only if it was asked to, and all went well."""

    directory: DemoDirectory
    plan: plan.DemoPlan
    screen: DemoScreen
    keep: bool
    as_json: bool

    def run(self) -> int:
        stack = DemoStack(self.directory, self.plan, keep=self.keep)
        try:
            story, results = self._work(stack)
            if not self.as_json:
                tell.tell(self.screen.console, self.plan, story, results)
            kept_home = stack.home if self.keep else None
            if kept_home is None:
                self._stop(stack)
        except KeyboardInterrupt:
            return self._interrupted(stack)
        except Exception as error:
            if _is_hangup(error):
                return self._interrupted(stack)
            self.screen.close()
            return self._failed(stack, error)
        if not results.right:
            self.screen.say(f"Not all of it is right. Logs: {stack.home.logs}", "red")
        elif kept_home is None:
            self.directory.remove()
            self.screen.say("nothing is left running, and the temporary directory is removed")
        if self.as_json:
            _print(tell.as_json(self.plan, story, results, kept_home))
        tell.next_steps(self.screen.console, self.plan, kept_home)
        return 0 if results.right else 1

    def _interrupted(self, stack: DemoStack) -> int:
        _ignore_signals()
        self.screen.close()
        self.screen.say("Interrupted.", "red")
        self._stop(stack)
        self.directory.remove()
        self.screen.say("Nothing is left.")
        return EXIT_INTERRUPTED

    def _work(self, stack: DemoStack) -> tuple[watch.Story, results.Results]:
        if self.directory.refused is not None:
            self.screen.say(
                f"TRACE_HOME ({self.directory.refused}) holds a stack or other files and is left alone: "
                "the demo uses a temporary directory"
            )
        self.screen.say(
            "starting a stack: two Postgres clusters, an object store, a Dispatcher, two workers, a sink, a runner"
        )
        info = stack.start()
        node = (
            f"a JSON-RPC endpoint serves {self.plan.label}" if self.plan.recording else f"the node is {self.plan.label}"
        )
        self.screen.say(f"ready; {node}; leases last {LEASE_SECONDS} s here, so that you can watch")
        return asyncio.run(self._follow(stack.home, info))

    async def _follow(self, home: Home, stack: LocalStack) -> tuple[watch.Story, results.Results]:
        client = UserClient.of_stack(stack)
        live = LiveChapter(stack, client, self.plan, self.screen)
        try:
            functions = DemoFunctions(stack, client, self.plan, self.screen)
            await watch.begin(client, self.plan, self.screen, functions)
            await live.begin()
            table = DemoTable(stack, client, self.plan, self.screen)
            story = await watch.follow(home, client, self.plan, self.screen, table, functions)
            self.screen.close()
            live_story = await live.run()
            self.screen.say("all done; reading the datasets")
            outcome, answers = await asyncio.gather(
                results.collect(stack, client, self.plan, story, table, functions), questions.ask(stack)
            )
            return story, replace(outcome, answers=answers, live=live_story)
        finally:
            self.screen.close()
            live.close()
            await client.close()

    def _failed(self, stack: DemoStack, error: Exception) -> int:
        reason = str(error) if isinstance(error, DemoError) else None
        if isinstance(error, TraceError):
            reason = f"{error.code}: {error.message}"
        if reason is None:
            log = self.directory.scratch / "demo.log"
            log.write_text("".join(traceback.format_exception(error)))
            reason = f"{type(error).__name__}, which nobody expected; see {log}"
        self._stop(stack)
        self.screen.say(f"The demo failed: {reason}", "red")
        self.screen.say(f"Nothing is running any more. Logs: {stack.home.logs} and {stack.log}")
        if self.as_json:
            _print({"ok": False, "error": reason, "logs": str(stack.home.logs)})
        return 1

    def _stop(self, stack: DemoStack) -> None:
        if stack.runs:
            self.screen.say("stopping everything")
        stack.stop()
