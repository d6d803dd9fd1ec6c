"""Bombs, hanging functions, and what outlives its answer. Each has a run of its own."""

# ruff: noqa: E501 - a table has one row per line

from dataclasses import replace

from tests.runner.attacks.catalogue import Attack, Place, in_native, of_language
from tests.runner.attacks.messages import NEXT, PARTIAL, get

MEMORY = frozenset({"memory"})
TIMEOUT = frozenset({"timeout"})
OUTPUT = frozenset({"output"})
FULL = frozenset({"ENOSPC", "EFBIG", "signal", "memory"})
TOO_MANY = frozenset({"EAGAIN", "RuntimeError", "memory", "timeout", "signal", "exit", "error"})
OK = frozenset({"ok"})
SHORT = 0.8


def _bomb(name: str, tries: str, verb: str, *arguments: str | bytes, contained: frozenset[str]) -> Attack:
    return Attack(
        name=name,
        tries=tries,
        place=Place.RESOURCES,
        verb=verb,
        arguments=arguments,
        contained=contained,
        alone=True,
        seconds=SHORT if "timeout" in contained else 60.0,
    )


_SIGNALS = "plain JavaScript queues no signals and makes no timers of the kernel"
_PAIRS = "plain JavaScript makes no pairs of sockets"
ATTACKS = (
    _bomb("processes", "as many as there can be", "forks", contained=TOO_MANY),
    _bomb("threads", "as many as there can be", "threads", contained=TOO_MANY | {"ERR_WORKER_INIT_FAILED"}),
    _bomb("memory", "all of it", "memory", contained=MEMORY),
    _bomb("memory in a child", "the parent answers that all is well", "children_memory", contained=MEMORY),
    _bomb("shared memory", "which is no process's own", "shared_memory", contained=MEMORY),
    _bomb("scratch", "the whole scratch directory", "disk", contained=FULL),
    _bomb("sparse file", "a tebibyte that takes no space", "sparse", contained=FULL),
    _bomb("inodes", "directories without content", "inodes", contained=FULL),
    _bomb("descriptors", "as many open files as there can be", "files", contained=frozenset({"EMFILE", "exit"})),
    _bomb("long arguments", "8 MiB for a program", "argv", contained=frozenset({"E2BIG"})),
    _bomb("standard output", "without an end, and without a line feed", "stdout", contained=OUTPUT),
    _bomb("standard error", "without an end", "stderr", contained=OUTPUT),
    _bomb("large answer", "more than the runner takes", "answer", contained=OUTPUT),
    _bomb("stack", "a recursion without an end", "recursion", contained=frozenset({"signal", "error", "memory", "RangeError", "RecursionError"})),
    _bomb("CPU", "a loop without an end", "busy", contained=TIMEOUT),
    _bomb("sleep", "ignores all signals", "sleep", contained=TIMEOUT),
    _bomb("stop", "stops itself, and waits for a child that is stopped", "stop", contained=TIMEOUT),
    _bomb("no descriptors", "closes all, and goes on", "close", contained=TIMEOUT | {"signal", "exit"}),
    _bomb("a second event", "waits for what never comes", "send", "9001", NEXT, contained=TIMEOUT),
    # Where the memory limit is a watch, it may count children that are about to end.
    _bomb("zombies", "children that nobody waits for", "zombies", contained=OK | MEMORY),
    _bomb("a daemon", "a process of another session that stays", "daemon", contained=OK),
    _bomb("kill all", "every process, the first one, its group and its parent", "kill_all", contained=OK),
    in_native(_bomb("priority of the group", "makes the runner slow", "group_priority", contained=OK), "plain JavaScript names single processes"),
    _bomb("crash", "a signal of the processor", "segv", contained=frozenset({"signal"})),
    _bomb("exit", "ends without an answer", "exit", contained=frozenset({"exit"})),
    _bomb("many connections", "one after another, without a request", "connections", "9002", "300", b"", "", "", contained=OK),
    _bomb("held connections", "more than the proxy takes", "connections", "9002", "150", b"", "", "kept", contained=OK),
    _bomb("half-closed connections", "sends no more, and reads nothing", "connections", "9002", "60", PARTIAL, "half", "kept", contained=OK),
    _bomb("slow heads", "requests that never end, on the proxy", "connections", "9002", "60", PARTIAL, "", "kept", contained=OK),
    _bomb("slow calls", "requests that never end, on the Runtime API", "connections", "9001", "50", PARTIAL, "", "kept", contained=OK),
    _bomb("unread replies", "asks for large objects, and reads nothing", "connections", "9002", "60", get("/data/datasets/a/1/large"), "", "kept", contained=OK),
    in_native(_bomb("memory of connections", "full buffers of TCP in many processes", "tcp_memory", "30", contained=MEMORY), "its processes take too much memory of their own"),
    of_language(_bomb("memory of connections in one process", "full buffers of TCP", "tcp_memory", contained=MEMORY | {"EMFILE", "exit"}), "node", "they use many processes"),
    in_native(_bomb("memory of sockets", "full buffers of Unix sockets", "unix_memory", "30", contained=MEMORY), _PAIRS),
    in_native(_bomb("queued signals", "that nobody takes", "queue", contained=frozenset({"EAGAIN"})), _SIGNALS),
    in_native(_bomb("timers", "of the kernel", "timers", contained=frozenset({"EAGAIN"})), _SIGNALS),
    replace(
        _bomb("descriptors in flight", "sent over sockets, received by nobody", "flight", contained=frozenset({"ETOOMANYREFS", "EMFILE"})),
        languages=("python",), unsuitable="the call is the same in Rust; Node sends none",
    ),
)  # fmt: skip
