"""Attempts of hostile Python code, run inside of a function's sandbox. Returns how each one ended."""

# mypy: ignore-errors

import ctypes
import errno
import os
import signal
import socket
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)


def attempt(action):
    try:
        value = action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except Exception as error:
        return type(error).__name__
    return f"allowed: {value!r}"[:200]


def syscall(number, *arguments):
    if libc.syscall(number, *(ctypes.c_long(item) for item in arguments)) < 0:
        raise OSError(ctypes.get_errno(), "")


def connect(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as client:
        client.settimeout(3)
        client.connect(address)
        if kind == socket.SOCK_DGRAM:
            client.send(b"x")


def through_link(path):
    link = Path("/tmp/link")
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    return link.read_bytes()


def run_program(*arguments):
    pid = os.posix_spawn(arguments[0], arguments, {})
    status = os.waitpid(pid, 0)[1]
    if status:
        raise OSError(errno.EPERM, "")


def handler(event, context):
    private = [
        "/etc/passwd",
        "/etc/shadow",
        "/proc/self/environ",
        "/proc/1/environ",
        "/proc/1/root",
        "/sys/kernel",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/tty",
        "/dev/shm",
        "/run",
        "/var/lib",
        "/var/log",
        "/old",
        "/home",
        "/boot",
        event["secret"],
    ]
    inside = ["/var/task/x", "/var/runtime/x", "/usr/x", "/etc/x", "/x", "/dev/x", "/var/task/probes.py", "/bin/sh"]
    ports = event["ports"]
    attempts = {f"read {path}": lambda path=path: os.open(path, os.O_RDONLY) for path in private}
    attempts |= {f"link {path}": lambda path=path: through_link(path) for path in private}
    attempts |= {f"write {path}": lambda path=path: os.open(path, os.O_WRONLY | os.O_CREAT) for path in inside}
    attempts |= {
        f"call {name}": lambda number=number: syscall(number, 0, 0, 0, 0, 0) for name, number in event["calls"].items()
    }
    attempts |= {f"port {port}": lambda port=port: connect(socket.AF_INET, ("127.0.0.1", port)) for port in ports}
    attempts |= {
        f"family {family} {kind}": lambda family=family, kind=kind: socket.socket(family, kind)
        for family in range(3, 46)
        if family != socket.AF_INET6
        for kind in (1, 2, 3, 5)
    }
    attempts |= {
        "another machine": lambda: connect(socket.AF_INET, ("192.0.2.1", 443)),
        "metadata": lambda: connect(socket.AF_INET, ("169.254.169.254", 80)),
        "datagram": lambda: connect(socket.AF_INET, ("192.0.2.1", 53), socket.SOCK_DGRAM),
        "ipv6": lambda: connect(socket.AF_INET6, ("2001:db8::1", 443)),
        "raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
        "name": lambda: socket.getaddrinfo("example.com", 443),
        "abstract socket": lambda: connect(socket.AF_UNIX, "\0" + event["abstract"]),
        "socket file": lambda: connect(socket.AF_UNIX, event["socket_file"]),
        "runtime port": lambda: socket.create_server(("127.0.0.1", 9001)),
        "root": lambda: os.setuid(0),
        "group": lambda: os.setgid(0),
        "nice": lambda: os.nice(-10),
        "limits": lambda: __import__("resource").setrlimit(__import__("resource").RLIMIT_NPROC, (10000, 10000)),
        "device": lambda: os.mknod("/tmp/device", 0o20666, os.makedev(1, 1)),
        "sudo": lambda: run_program("/usr/bin/su", "-c", "id"),
        "signal to the runner": lambda: os.kill(event["pid"], signal.SIGKILL),
        "trace the parent": lambda: syscall(event["ptrace"], 16, 1, 0, 0),
        "big file": lambda: os.truncate(os.open("/tmp/big", os.O_WRONLY | os.O_CREAT), 1 << 40),
        "other user's task": lambda: list(Path(event["directory"]).iterdir()),
        "hostname": lambda: socket.sethostname("x"),
    }
    results = {name: attempt(action) for name, action in attempts.items()}
    return {"results": results, "environment": sorted(os.environ), "parent": os.getppid(), "pid": os.getpid()}
