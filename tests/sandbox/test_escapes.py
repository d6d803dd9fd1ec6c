"""Code inside of a sandbox tries each way out."""

import os
import socket
from pathlib import Path

import pytest

from tests.sandbox.conftest import Playground
from tracelake.sandbox.spec import MIB, Ending, Mount

REFUSALS = {"EPERM", "ENOSYS"}

# Numbers on x86_64 and on aarch64.
DANGEROUS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "inotify_init1": (294, 26),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_create_ruleset": (444, 444),
    "memfd_create": (319, 279),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "seccomp": (317, 277),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "setuid": (105, 146),
    "shmget": (29, 194),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}


def test_refuses_dangerous_system_calls(playground: Playground) -> None:
    source = f"""
for name, numbers in {DANGEROUS}.items():
    say(name + " " + syscall(numbers[platform.machine() != "x86_64"], 0))
"""
    results = dict(line.split() for line in playground.lines(source))
    assert {name: result for name, result in results.items() if result not in REFUSALS} == {}
    assert set(results) == set(DANGEROUS)


def test_makes_no_namespace_by_clone(playground: Playground) -> None:
    source = """
number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
for shift in (7, 17, 25, 26, 27, 28, 29, 30):
    say(syscall(number, 1 << shift | signal.SIGCHLD, 0, 0, 0, 0))
"""
    assert set(playground.lines(source)) == {"EPERM"}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86_64 has two sets of system calls")
def test_ends_on_calls_of_another_instruction_set(playground: Playground) -> None:
    source = """
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000cd80c3"))  # getpid of 32 bits
say("before")
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
say("after")
"""
    lines, report = playground.report(source)
    assert lines == ["before"]
    assert (report.ending, report.status) == (Ending.SIGNALLED, 31)


def test_has_no_identity_and_no_capabilities(playground: Playground) -> None:
    source = """
say(0 in (*os.getresuid(), *os.getresgid()))
say([libc.prctl(23, number, 0, 0, 0) for number in range(64)].count(1))
say(libc.prctl(39, 0, 0, 0, 0))
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc.capget(header, sets)
say(any(sets))
say(os.getpid())
"""
    assert playground.lines(source) == ["False", "0", "1", "False", "1"]


def test_is_alone_in_its_process_group(playground: Playground) -> None:
    """A signal or a priority for the group reaches all of its processes, in whatever namespace they are."""
    assert playground.lines("say([os.getpid(), os.getpgid(0), os.getsid(0)])") == ["[1, 1, 1]"]


def test_makes_sockets_of_listed_families_and_protocols(programs: Playground) -> None:
    source = """
socket_call, pair_call = {"x86_64": (41, 53), "aarch64": (198, 199)}[platform.machine()]
pair = (ctypes.c_int * 2)()
for family in range(46):
    say(f"{family} {syscall(socket_call, family, 1, 0)} {syscall(pair_call, family, 1, 0, ctypes.addressof(pair))}")
for protocol in range(1, 300):
    for family, kind in ((2, 1), (2, 2), (2, 5), (10, 1), (10, 2), (10, 5)):
        if syscall(socket_call, family, kind, protocol) == "allowed":
            say(f"{family} {kind} {protocol}")
"""
    lines = programs.lines(source, open_files=1024)
    pairs = {int(family): result for family, *result in map(str.split, lines[:46])}
    assert {family for family, result in pairs.items() if result[0] == "allowed"} == {1, 2, 10}
    assert {family for family, result in pairs.items() if result[1] == "allowed"} == {1}
    assert {result[1] for family, result in pairs.items() if family != 1} == {"EAFNOSUPPORT"}
    assert set(lines[46:]) == {"2 1 6", "2 2 17", "10 1 6", "10 2 17"}


def test_has_no_environment(playground: Playground) -> None:
    source = "say(list(map(os.environ.get, ['SECRET_OF_THE_SERVICE', 'PATH', 'HOME'])))"
    assert playground.lines(source) == ["[None, None, None]"]


def test_sees_its_own_processes_alone(playground: Playground) -> None:
    source = """
say(sorted(int(name) for name in os.listdir("/proc") if name.isdigit()))
say(attempt(lambda: Path("/proc/self/environ").read_bytes()))
say(attempt(lambda: Path("/proc/sys/kernel/hostname").write_text("x")))
"""
    pids, environment, sysctl = playground.lines(source, proc=True)
    assert pids == "[1]"
    assert environment in ("EACCES", "allowed")
    assert sysctl != "allowed"


def test_has_exactly_the_named_files(playground: Playground, tmp_path: Path) -> None:
    given, other = tmp_path / "given", tmp_path / "other"
    for file in (given, other):
        file.write_text(file.name)
        file.chmod(0o666)
    playground.mounts.append(Mount(source=str(given), target="/data/given"))
    source = f"""
say(Path("/data/given").read_text())
say(sorted(str(path) for path in Path("/").rglob("*")))
for path in ("/etc/passwd", "/proc/1/environ", "/proc/self/mem", "/old", "/tmp", "/dev/mem", {str(other)!r}):
    say(attempt(lambda: os.stat(path)))
for path in ("/data/given/../../..", "/..", "/../old"):
    say(attempt(lambda: [os.stat(path + "/etc/passwd")]))
"""
    text, tree, *others = playground.lines(source)
    assert text == "given"
    assert tree == "['/data', '/data/given']"
    assert "allowed" not in others


def test_writes_nowhere(playground: Playground, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text("unchanged")
    given.chmod(0o666)
    playground.mounts.append(Mount(source=str(given), target="/data/given"))
    source = """
for path in ("/data/given", "/data/new", "/new"):
    for flags in (os.O_WRONLY | os.O_CREAT, os.O_RDWR | os.O_CREAT, os.O_WRONLY, os.O_TMPFILE | os.O_RDWR):
        say(attempt(lambda: os.open(path, flags)))
say(attempt(lambda: os.chmod("/data/given", 0)))
say(attempt(lambda: os.unlink("/data/given")))
say(attempt(lambda: os.mkdir("/data/more")))
say(attempt(lambda: os.symlink("/", "/link")))
"""
    assert "allowed" not in playground.lines(source, file_bytes=MIB)
    assert given.read_text() == "unchanged"


def test_scratch_is_private_and_bounded(playground: Playground) -> None:
    source = """
def fill():
    for number in range(64):
        descriptor = os.open(f"/tmp/{number}", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, bytes(65536))
        os.close(descriptor)
say(os.listdir("/tmp"))
say(attempt(fill))
say(os.stat("/tmp/0").st_size)
"""
    empty, filled, _ = playground.lines(source, scratch_bytes=MIB, file_bytes=65536)
    assert (empty, filled) == ("[]", "ENOSPC")
    assert playground.lines(source, scratch_bytes=64 * MIB, file_bytes=1024) == ["[]", "allowed", "1024"]


def test_has_no_other_descriptors(playground: Playground, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file, socket.socket() as listener:
        os.set_inheritable(file.fileno(), True)
        os.set_inheritable(listener.fileno(), True)
        source = "say([number for number in range(4096) if attempt(lambda: os.fstat(number)) == 'allowed'])"
        assert playground.lines(source) == ["[0, 1, 2, 3]"]
        source = "say([os.fstat(number).st_rdev for number in range(3)])"
        assert playground.lines(source) == [str([Path("/dev/null").stat().st_rdev] * 3)]


def test_reaches_no_network(playground: Playground) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0trace-test-{os.getpid()}")
        abstract.listen()
        source = f"""
def reach(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as connection:
        connection.settimeout(5)
        connection.connect(address)
say(attempt(lambda: reach(socket.AF_INET, ("127.0.0.1", {listener.getsockname()[1]}))))
say(attempt(lambda: reach(socket.AF_INET, ("192.0.2.1", 53), socket.SOCK_DGRAM)))
say(attempt(lambda: reach(socket.AF_INET6, ("::1", {listener.getsockname()[1]}))))
say(attempt(lambda: reach(socket.AF_UNIX, "\\0trace-test-{os.getpid()}")))
for family in (9, 10, 16, 17, 29, 31, 38, 40, 44):
    for kind in (1, 2, 3):
        if family != 10 or kind == 3:
            say(attempt(lambda: socket.socket(family, kind)))
"""
        results = playground.lines(source)
    assert "allowed" not in results, "X.25, IPv6 raw, netlink, packet, CAN, Bluetooth, AF_ALG, vsock, XDP and others"


def test_signals_nobody_outside(playground: Playground) -> None:
    source = f"""
for pid in ({os.getpid()}, {os.getppid()}, -{os.getpgrp()}, {playground.server.pid}):
    say(attempt(lambda: os.kill(pid, 0)))
"""
    assert set(playground.lines(source)) <= {"EPERM", "ESRCH"}


def test_cannot_outlive_its_monitor(playground: Playground) -> None:
    # PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_PTRACER, PR_SET_SECCOMP
    source = "say([libc.prctl(option, 0, 0, 0, 0) for option in (1, 4, 0x59616d61, 22)])"
    assert playground.lines(source) == ["[-1, -1, -1, -1]"]


def test_forks_no_process(computing: Playground) -> None:
    source = """
say(attempt(os.fork))
say(attempt(lambda: os.execv("/data/program", ["program"])))
threads = []
def start():
    for _ in range(200):
        thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
        thread.start()
        threads.append(thread)
try:
    start()
except RuntimeError:
    say(len(threads))
os._exit(0)
"""
    fork, execute, threads = computing.lines(source, processes=8, memory_bytes=1024 * MIB)
    assert (fork, execute) == ("EPERM", "EPERM")
    assert 1 <= int(threads) <= 8


def test_fork_bomb_stays_small_and_ends(programs: Playground) -> None:
    source = """
count = 0
def bomb():
    global count
    while count < 500:
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        count += 1
say(attempt(bomb))
say(count)
"""
    (error, count), report = programs.report(source, processes=10)
    assert (error, report.ending) == ("EAGAIN", Ending.EXITED)
    assert 1 <= int(count) <= 10


def test_memory_bomb_ends_alone(playground: Playground) -> None:
    source = """
say(attempt(lambda: bytearray(64 << 20)))
say(attempt(lambda: bytearray(1 << 30)))
say(attempt(lambda: mmap.mmap(-1, 1 << 30)))
"""
    assert playground.lines(source, memory_bytes=256 * MIB) == ["allowed", "MemoryError", "ENOMEM"]
    _, report = playground.report("chunks = []\nwhile True: chunks.append(bytearray(1 << 20))", memory_bytes=64 * MIB)
    assert report.status != 0
    assert report.peak_memory < 1024 * MIB


def test_raises_no_limit(playground: Playground) -> None:
    source = """
class Limit(ctypes.Structure):
    _fields_ = (("soft", ctypes.c_uint64), ("hard", ctypes.c_uint64))
limit = Limit(1 << 60, 1 << 60)
say(libc.prlimit(0, 9, ctypes.byref(limit), None))
say(libc.setrlimit(9, ctypes.byref(limit)))
"""
    assert playground.lines(source) == ["-1", "-1"]


def test_cpu_bomb_is_killed(computing: Playground) -> None:
    _, report = computing.report("while True: pass", cpu_seconds=1)
    assert (report.ending, report.status) == (Ending.SIGNALLED, 9)


def test_sandboxes_do_not_share_identities(playground: Playground) -> None:
    if os.geteuid() != 0:
        pytest.skip("a plain user has one identity; namespaces separate its sandboxes")
    uids = {playground.lines("say(os.getuid())")[0] for _ in range(3)}
    assert len(uids) == 3
