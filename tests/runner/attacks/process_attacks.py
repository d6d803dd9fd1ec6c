"""Attacks on other processes, and attempts to become another user or to get privileges."""

# ruff: noqa: E501 - a table has one row per line

from tests.runner.attacks.catalogue import Attack, Place, in_native, of_language

NOBODY = frozenset({"ESRCH"})
REFUSED = frozenset({"EPERM", "EACCES", "EINVAL"})
FAILED = frozenset({"exit", "ENOENT", "EACCES"})
PROGRAMS = {
    "become root by su": ("/usr/bin/su", "-c", "id"),
    "become root by sudo": ("/usr/bin/sudo", "-n", "id"),
    "mount a file system": ("/usr/bin/mount", "-t", "tmpfs", "none", "/tmp"),
    "unmount the system": ("/usr/bin/umount", "/usr"),
    "user namespace by a program": ("/usr/bin/unshare", "-U", "/bin/true"),
    "root of a user namespace": ("/usr/bin/unshare", "-Ur", "/bin/true"),
    "network namespace by a program": ("/usr/bin/unshare", "-n", "/bin/true"),
    "enter the first process": ("/usr/bin/nsenter", "-t", "1", "-m", "/bin/true"),
    "change the root directory": ("/usr/sbin/chroot", "/tmp", "/bin/true"),
    "device by a program": ("/usr/bin/mknod", "/tmp/memory", "c", "1", "1"),
    "messages of the kernel": ("/usr/bin/dmesg",),
    "network interface": ("/usr/sbin/ip", "link", "add", "x", "type", "dummy"),
    "route": ("/usr/sbin/ip", "route", "add", "default", "dev", "lo"),
    "load a module": ("/usr/sbin/modprobe", "loop"),
    "set a parameter of the kernel": ("/usr/sbin/sysctl", "-w", "kernel.core_pattern=|/tmp/x"),
    "change the clock": ("/usr/bin/date", "-s", "2001-01-01"),
    "change the host name": ("/usr/bin/hostname", "x"),
    "real-time priority": ("/usr/bin/chrt", "-f", "1", "/bin/true"),
    "swap to a file": ("/usr/sbin/swapon", "/tmp/x"),
    "reboot": ("/usr/sbin/reboot", "-f"),
    "raise limits by a program": ("/usr/bin/prlimit", "--nproc=100000", "/bin/true"),
    "debug the first process": ("/usr/bin/gdb", "-p", "1", "-batch"),
}


def _process(name: str, tries: str, verb: str, *arguments: str, contained: frozenset[str]) -> Attack:
    return Attack(name=name, tries=tries, place=Place.PROCESSES, verb=verb, arguments=arguments, contained=contained)


_NODE = "other languages make the system call"
ATTACKS = (
    *(_process(name, f"runs {' '.join(words)}", "exec", *words, contained=FAILED) for name, words in PROGRAMS.items()),
    _process("kill the runner", "by its process id", "kill", "{pid}", "9", contained=NOBODY),
    _process("stop the runner", "by its process id", "kill", "{pid}", "19", contained=NOBODY),
    _process("kill the fork server", "by its process id", "kill", "{server}", "9", contained=NOBODY),
    _process("kill another task", "by its process id", "kill", "{victim}", "9", contained=NOBODY),
    _process("kill the runner's group", "by the number of its process group", "kill", "-{group}", "9", contained=NOBODY),
    in_native(_process("negative priority", "before other processes", "call", "141", "0", "0", "-10", contained=REFUSED)),
    in_native(_process("root's user id", "setuid", "call", "105", "0", contained=REFUSED)),
    in_native(_process("root's group id", "setgid", "call", "106", "0", contained=REFUSED)),
    in_native(_process("more processes", "raises its limit of processes", "call", "302", "0", "6", "1", "0", contained=REFUSED)),
    of_language(_process("root's user id in JavaScript", "process.setuid", "setuid", "0", contained=REFUSED), "node", _NODE),
    of_language(_process("root's group id in JavaScript", "process.setgid", "setgid", "0", contained=REFUSED), "node", _NODE),
    of_language(_process("root's groups in JavaScript", "process.setgroups", "setgroups", "0", contained=REFUSED), "node", _NODE),
    of_language(_process("negative priority in JavaScript", "os.setPriority", "nice", "-10", contained=REFUSED), "node", _NODE),
    of_language(_process("a native module", "code of a library in scratch", "module", "/tmp/x.node", contained=frozenset({"ERR_DLOPEN_FAILED"})), "node", "native code is theirs anyway"),
)  # fmt: skip
