"""A hostile function in Python: runs the attacks that its event names, and returns how each one ended.

The event is a script, see `script.py`. An ending is `allowed`, the name of an error, or a word of the attack itself.
"""

# mypy: ignore-errors
# ruff: noqa: PTH101, PTH102, PTH104, PTH123, RET503 - the calls of the kernel by their names

import ctypes
import errno
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

MIB = 1 << 20
PATIENCE = 10
FOREVER = 600
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *(ctypes.c_long(item) for item in arguments)) < 0:
        raise OSError(ctypes.get_errno(), "")


def in_child(action):
    """How a child ended in which the action ran: `allowed`, an error, or the signal that killed it."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status > 0:
        raise OSError(status, "")
    return f"signal{-status}" if status else "allowed"


def run_code(code):
    """Runs machine code of x86_64."""
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
    if result < 0:
        raise OSError(-result, "")


def split_address(text):
    host, _, port = text.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    return family, (host.strip("[]"), int(port))


def connect_tcp(text):
    family, address = split_address(text)
    with socket.socket(family) as client:
        client.settimeout(PATIENCE)
        client.connect(address)


def send_datagram(text):
    family, address = split_address(text)
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        client.sendto(b"x", address)


def connect_unix(name):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + name[1:] if name.startswith("@") else name)


def listen(text):
    family, address = split_address(text)
    with socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen()


def send(port, message):
    """The status of the reply to these bytes; `closed`: none."""
    with socket.create_connection(("127.0.0.1", int(port)), PATIENCE) as client:
        reply = b""
        try:
            with suppress(OSError):
                client.sendall(message)
                client.shutdown(socket.SHUT_WR)
            while len(reply) < 12 and (part := client.recv(4096)):
                reply += part
        except TimeoutError:
            return "silent"
        except OSError:
            pass
    return reply[9:12].decode("latin-1") or "closed"


def connections(port, count, message, half="", kept=""):
    clients = []
    for _ in range(int(count)):
        with suppress(OSError):
            client = socket.create_connection(("127.0.0.1", int(port)))
            clients.append(client)
            client.sendall(message)
            if half == "half":
                client.shutdown(socket.SHUT_WR)
            if kept != "kept":
                clients.pop().close()
    keep.extend(clients)
    return "ok"


keep = []


def symlink(path):
    link = Path("/tmp/symlink")
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    os.open(link, os.O_RDONLY)


def chown(path=""):
    Path("/tmp/owned").write_text("x")
    os.chown(path or "/tmp/owned", 0, 0)


def find_descriptors():
    for number in range(3, 512):
        with suppress(OSError):
            os.fstat(number)
            return f"allowed {number}"
    raise OSError(errno.EBADF, "")


def execute(*arguments):
    run = subprocess.run(arguments, env={}, capture_output=True, check=False)
    return "exit" if run.returncode else "allowed"


def every_other_call(allowlist):
    listed = {int(item) for item in allowlist.split(",")}
    odd = []
    for number in set(range(1024)) - listed:
        ctypes.set_errno(0)
        if libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6) >= 0 or ctypes.get_errno() not in (1, 38):
            odd.append(number)
    if odd:
        return f"allowed {odd}"
    raise OSError(errno.EPERM, "")


def make_sockets(family):
    """Of each kind, and a pair; the last refusal if there is none."""
    for kind in (1, 2, 3, 4, 5):
        with suppress(OSError):
            socket.socket(int(family), kind).close()
            return f"allowed {kind}"
        with suppress(OSError):
            call(53, int(family), kind, 0, ctypes.addressof((ctypes.c_int * 2)()))
            return f"allowed pair {kind}"
    socket.socketpair(int(family), socket.SOCK_STREAM)


def make_sockets_of_protocol(protocol):
    for family in (socket.AF_INET6, socket.AF_INET):
        for kind in (1, 2, 3, 4, 5):
            with suppress(OSError):
                socket.socket(family, kind, int(protocol)).close()
                return f"allowed {family} {kind}"
    socket.socket(socket.AF_INET, socket.SOCK_RAW, int(protocol))


def repeat(action):
    while True:
        action()


def at_most(count, action):
    for _ in range(count):
        action()


def take_memory():
    blocks = []
    while True:
        blocks.append(b"x" * MIB)


def children_memory():
    with suppress(OSError):
        in_child(take_memory)
    return "ok"


def share_memory():
    while True:
        area = mmap.mmap(-1, 16 * MIB)
        area.write(b"x" * 16 * MIB)
        keep.append(area)


def fill_disk():
    with open("/tmp/disk", "wb", buffering=0) as file:
        repeat(lambda: file.write(b"x" * 65536))


def send_descriptors():
    """Sends descriptors over sockets, which nobody receives: they are open, and in no process."""
    while True:
        pair = socket.socketpair()
        with suppress(BlockingIOError):
            pair[0].setblocking(False)
            while True:
                socket.send_fds(pair[0], [b"x"], [pair[1].fileno()] * 200)
        inner = socket.socketpair()
        socket.send_fds(inner[0], [b"x"], [pair[0].fileno(), pair[1].fileno()])
        keep.append(inner)


def queue_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
    for _ in range(2000):
        if libc.sigqueue(os.getpid(), signal.SIGRTMIN, 0) < 0:
            raise OSError(ctypes.get_errno(), "")


def create_timer():
    timer = ctypes.c_void_p()
    if libc.timer_create(1, None, ctypes.byref(timer)) < 0:
        raise OSError(ctypes.get_errno(), "")


def recurse():
    sys.setrecursionlimit(10**9)

    def deeper():
        deeper()

    deeper()


def ignore_signals():
    for number in set(range(1, 32)) - {9, 19}:
        signal.signal(number, signal.SIG_IGN)
    repeat(lambda: time.sleep(FOREVER))


def close_all():
    os.closerange(0, 512)
    repeat(lambda: None)


def zombies():
    for _ in range(30):
        if os.fork() == 0:
            os._exit(0)
    return "ok"


def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        time.sleep(FOREVER)
    return "ok"


def kill_all():
    for target in (-1, 0, 1, os.getppid()):
        for number in (15, 19, 9):
            with suppress(OSError):
                os.kill(target, number)
    return "ok"


def group_priority():
    with suppress(OSError):
        os.setpriority(os.PRIO_PGRP, 0, 19)
    return "ok"


def fill_sockets(unix):
    """As much as the kernel takes over as many pairs of sockets as there can be."""
    with suppress(OSError):
        while True:
            if unix:
                pair = socket.socketpair()
            else:
                with socket.create_server(("127.0.0.1", 0)) as server:
                    pair = (socket.create_connection(server.getsockname()), server.accept()[0])
            keep.extend(pair)
            for end in pair:
                end.setblocking(False)
                with suppress(BlockingIOError):
                    while end.send(b"x" * 65536):
                        pass


def fill_sockets_in_children(count, unix):
    for _ in range(int(count)):
        if os.fork() == 0:
            fill_sockets(unix)
            time.sleep(FOREVER)
    time.sleep(FOREVER)


def kill(pid, number):
    os.kill(int(pid), int(number))


VERBS = {
    "answer": lambda: "x" * (7 * MIB),
    "argv": lambda: subprocess.run(["/bin/true", "x" * (8 * MIB)], check=False),
    "bind": listen,
    "busy": lambda: repeat(lambda: None),
    "call": lambda *numbers: call(*map(int, numbers)),
    "call_in_child": lambda *numbers: in_child(lambda: call(*map(int, numbers))),
    "calls": every_other_call,
    "children_memory": children_memory,
    "chmod": lambda path: os.chmod(path, 0o6777),
    "chown": chown,
    "close": close_all,
    "connections": connections,
    "daemon": daemon,
    "descriptors": find_descriptors,
    "disk": fill_disk,
    "exec": execute,
    "exit": lambda: os._exit(3),
    "family": make_sockets,
    "files": lambda: at_most(300, lambda: os.open("/dev/null", os.O_RDONLY)),
    "flight": send_descriptors,
    "forks": lambda: repeat(os.fork),
    "group_priority": group_priority,
    "inodes": lambda: [os.mkdir(f"/tmp/{number}") for number in range(10**9)],
    "int80": lambda number: in_child(lambda: run_code(b"\xb8" + int(number).to_bytes(4, "little") + b"\xcd\x80\xc3")),
    "kill": kill,
    "kill_all": kill_all,
    "limit": lambda kind, value: resource.setrlimit(int(kind), (int(value), int(value))),
    "link": lambda path: os.link(path, "/tmp/hard-link"),
    "memory": take_memory,
    "mkdir": os.mkdir,
    "name": lambda host: socket.getaddrinfo(host, 443),
    "protocol": make_sockets_of_protocol,
    "queue": queue_signals,
    "read": lambda path: os.open(path, os.O_RDONLY | os.O_NONBLOCK),
    "recursion": recurse,
    "rename": lambda path: os.rename(path, "/tmp/renamed"),
    "segv": lambda: ctypes.string_at(0),
    "send": send,
    "shared_memory": share_memory,
    "sleep": ignore_signals,
    "sparse": lambda: os.truncate(os.open("/tmp/sparse", os.O_WRONLY | os.O_CREAT), 1 << 40),
    "stderr": lambda: repeat(lambda: os.write(2, b"x" * 65536)),
    "stdin": lambda: os.fchmod(0, 0o777),
    "stdout": lambda: repeat(lambda: os.write(1, b"x" * 65536)),
    "stop": lambda: in_child(lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "symlink": symlink,
    "tcp": connect_tcp,
    "tcp_memory": lambda count: fill_sockets_in_children(count, unix=False),
    "threads": lambda: at_most(200, lambda: threading.Thread(target=time.sleep, args=(FOREVER,)).start()),
    "timers": lambda: at_most(2000, create_timer),
    "touch": os.utime,
    "truncate": lambda path: os.open(path, os.O_WRONLY | os.O_TRUNC),
    "udp": send_datagram,
    "unix": connect_unix,
    "unix_memory": lambda count: fill_sockets_in_children(count, unix=True),
    "unlink": os.unlink,
    "write": lambda path: os.open(path, os.O_WRONLY | os.O_CREAT),
    "zombies": zombies,
}
BYTES = {"send": 1, "connections": 2}
"""The argument that is not text."""


def attempt(line):
    verb, *words = line.split(" ")
    arguments = [bytes.fromhex(word) for word in words]
    arguments = [item if BYTES.get(verb) == place else item.decode() for place, item in enumerate(arguments)]
    try:
        ending = VERBS[verb](*arguments)
    except socket.gaierror:
        return "unresolved"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except (MemoryError, RuntimeError) as error:
        return type(error).__name__
    return ending if isinstance(ending, str) else "allowed"


def handler(event, context):
    return [attempt(line) for line in event.split(";")]
