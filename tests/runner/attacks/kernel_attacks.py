"""Attacks on the kernel: system calls outside of the allowlist, and arguments of those that are on it."""

# ruff: noqa: E501 - a table has one row per line

from dataclasses import replace

from tests.runner.attacks.catalogue import Attack, Place, in_native, of_language

REFUSED = frozenset({"EPERM"})
KILLED = frozenset({"signal31"})
CALLS = {
    "acct": 163, "add_key": 248, "adjtimex": 159, "bpf": 321, "cachestat": 451, "capset": 126, "chroot": 161,
    "clock_adjtime": 305, "clock_settime": 227, "delete_module": 176, "fanotify_init": 300, "fanotify_mark": 301,
    "finit_module": 313, "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433, "fsetxattr": 190,
    "futex_waitv": 449, "init_module": 175, "inotify_init": 253, "inotify_init1": 294, "io_cancel": 210, "io_setup": 206,
    "io_submit": 209, "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425, "ioperm": 173, "iopl": 172,
    "ioprio_set": 251, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250,
    "landlock_create_ruleset": 444, "landlock_restrict_self": 446, "listmount": 458, "lookup_dcookie": 212,
    "lsm_set_self_attr": 460, "map_shadow_stack": 453, "mbind": 237, "memfd_create": 319, "memfd_secret": 447,
    "migrate_pages": 256, "mknod": 133, "mknodat": 259, "mlockall": 151, "modify_ldt": 154, "mount": 165,
    "mount_setattr": 442, "move_mount": 429, "move_pages": 279, "mq_open": 240, "msgget": 68, "name_to_handle_at": 303,
    "nfsservctl": 180, "open_by_handle_at": 304, "open_tree": 428, "openat2": 437, "perf_event_open": 298,
    "personality": 135, "pidfd_getfd": 438, "pidfd_open": 434, "pidfd_send_signal": 424, "pivot_root": 155,
    "pkey_alloc": 330, "process_madvise": 440, "process_mrelease": 448, "process_vm_readv": 310,
    "process_vm_writev": 311, "ptrace": 101, "quotactl": 179, "quotactl_fd": 443, "reboot": 169, "remap_file_pages": 216,
    "request_key": 249, "sched_setattr": 314, "sched_setparam": 142, "seccomp": 317, "semget": 64, "set_mempolicy": 238,
    "setdomainname": 171, "setfsgid": 123, "setfsuid": 122, "setgroups": 116, "sethostname": 170, "setns": 308,
    "setregid": 114, "setresgid": 119, "setresuid": 117, "setreuid": 113, "settimeofday": 164, "setxattr": 188, "shmat": 30,
    "shmget": 29, "statmount": 457, "swapoff": 168, "swapon": 167, "sync": 162, "syncfs": 306, "sysfs": 139, "syslog": 103,
    "umount2": 166, "unshare": 272, "uselib": 134, "userfaultfd": 323, "vhangup": 153, "vmsplice": 278,
}  # fmt: skip
"""Numbers of x86_64."""
PROBES = {"uretprobe": 335, "uprobe": 336}
NAMESPACES = {
    "time": 0x80, "mounts": 0x20000, "control groups": 0x2000000, "host name": 0x4000000, "IPC": 0x8000000,
    "users": 0x10000000, "processes": 0x20000000, "network": 0x40000000,
}  # fmt: skip
PRCTLS = {
    "end with the parent no more": (1, 0), "be readable by others": (4, 1), "keep capabilities": (8, 1),
    "a filter of its own": (22, 2), "strict mode": (22, 1), "security bits": (28, 0), "another image": (35, 13),
    "adopt orphans": (36, 1), "ambient capabilities": (47, 2), "allow tracing": (0x59616D61, -1), "timer slack": (29, 1),
    "time stamp counter": (26, 2), "input and output flusher": (57, 1), "core scheduling": (62, 1),
    "speculation": (53, 0), "machine checks": (33, 1), "dispatch of system calls": (59, 1),
}  # fmt: skip
IOCTLS = {
    "type into a terminal": 0x5412, "the console's buffer": 0x541C, "a controlling terminal": 0x540E,
    "another foreground group": 0x5410, "hang a terminal up": 0x5437, "signals on input": 0x5452,
    "flags of a file": 0x40086602, "freeze a file system": 0xC0045877, "share blocks": 0x40049409,
    "discard blocks": 0x1277, "a virtual machine": 0xAE01, "entropy": 0x40085203, "interfaces": 0x8912,
    "routes": 0x890B, "a tunnel": 0x400454CA, "owner of a namespace": 0xB701, "a loop device": 0x4C00,
    "a filter's notifications": 0xC0502100,
}  # fmt: skip


def _call(name: str, tries: str, *numbers: int, contained: frozenset[str], verb: str = "call") -> Attack:
    arguments = tuple(str(number) for number in numbers)
    attack = Attack(
        name=name,
        tries=tries,
        place=Place.KERNEL,
        verb=verb,
        arguments=arguments,
        contained=contained,
        machine="x86_64",
    )
    return in_native(attack)


ATTACKS = (
    *(_call(f"system call {name}", "a call outside of the allowlist", number, contained=REFUSED) for name, number in CALLS.items()),
    replace(_call("every other system call", "all numbers below 1024 that are not allowed", contained=REFUSED, verb="calls"), arguments=("{allowlist}",)),
    *(_call(f"system call {name}", "passes every filter of Linux 6.14; the kernel refuses a caller that is not probed", number, contained=REFUSED | {"signal4", "ENOSYS", "ENXIO"}, verb="call_in_child") for name, number in PROBES.items()),
    *(_call(f"clone: namespace of {name}", "clone with this flag", 56, flag | 17, contained=REFUSED) for name, flag in NAMESPACES.items()),
    _call("clone3", "flags that a filter cannot read", 435, 0, 0, contained=frozenset({"ENOSYS"})),
    _call("clone: sibling", "a child of the monitor", 56, 0x8000 | 17, contained=frozenset({"EINVAL"}), verb="call"),
    *(_call(f"prctl: {name}", "a control of processes", 157, *numbers, contained=frozenset({"EINVAL"})) for name, numbers in PRCTLS.items()),
    *(_call(f"ioctl: {name}", "a control of devices", 16, 0, number, contained=frozenset({"ENOTTY"})) for name, number in IOCTLS.items()),
    _call("32-bit getpid", "numbers of another instruction set by int 0x80", 20, contained=KILLED, verb="int80"),
    _call("32-bit mount", "the same for mount", 21, contained=KILLED, verb="int80"),
    _call("32-bit ptrace", "the same for ptrace", 26, contained=KILLED, verb="int80"),
    _call("x32 getpid", "numbers of another ABI", 0x40000000 | 39, contained=KILLED, verb="call_in_child"),
    _call("x32 ptrace", "the same for ptrace", 0x40000000 | 521, contained=KILLED, verb="call_in_child"),
    _call("negative number", "a number below all", -1, contained=KILLED | {"ENOSYS"}, verb="call_in_child"),
    _call("real-time scheduling", "before all other processes", 144, 0, 1, 0, contained=frozenset({"EPERM", "EFAULT", "EINVAL"})),
    _call("lock memory", "pages that are never reclaimed", 149, 0x10000, 1 << 20, contained=frozenset({"EPERM", "ENOMEM"})),
    _call("map the first page", "null pointers of the kernel", 9, 0, 4096, 3, 0x32, -1, 0, contained=frozenset({"EPERM", "EACCES"})),
    _call("map a tebibyte", "more memory than the machine has", 9, 0, 1 << 40, 3, 0x22, -1, 0, contained=frozenset({"ENOMEM"})),
    _call("executable memory", "code that it wrote: allowed, V8 needs it; nothing relies on its absence", 9, 0, 4096, 7, 0x22, -1, 0, contained=frozenset({"allowed"})),
    _call("execute a memory file", "a program without a name", 322, 0, 0, 0, 0, 0x1000, contained=frozenset({"EFAULT", "EACCES", "EINVAL"})),
    _call("raise the limit of descriptors", "prlimit64 with a new value", 302, 0, 7, 1, 0, contained=REFUSED),
    _call("limits of another process", "prlimit64 of process 2", 302, 2, 7, 1, 0, contained=REFUSED),
    of_language(
        Attack(name="internal bindings of Node", tries="process.binding of the inspector's wrap", place=Place.KERNEL, verb="binding", arguments=("spawn_sync_x",), contained=frozenset({"ERR_INVALID_MODULE", "Error"})),
        "node", "only Node has them",
    ),
)  # fmt: skip
