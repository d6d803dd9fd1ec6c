"""A machine that lacks something: the service does not start, and the error names what is missing and what to do."""

import asyncio
import errno
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.conftest import ROOT, Playground
from tracelake.errors import TraceError
from tracelake.sandbox import linux
from tracelake.sandbox.machine import check_machine, explain_refusal
from tracelake.sandbox.seccomp import Profile, assemble_filter, install_filter
from tracelake.sandbox.spec import Mount

_PLAIN_UID = 1000


def become_plain_user() -> None:
    """Needs root. Others get to see the Python in a private directory of root, in this process alone."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    base = Path(sys.base_prefix).resolve()
    private = [path for path in base.parents if not path.stat().st_mode & 1]
    if private:
        interpreter = os.open(base, os.O_PATH)
        linux.mount("tmpfs", str(private[-1]), "tmpfs", 0, "mode=0755")
        base.mkdir(parents=True)
        linux.mount(f"/proc/self/fd/{interpreter}", str(base), None, linux.MS_BIND)
    os.setgroups([])
    os.setresgid(_PLAIN_UID, _PLAIN_UID, _PLAIN_UID)
    os.setresuid(_PLAIN_UID, _PLAIN_UID, _PLAIN_UID)


def forbid_namespaces() -> None:
    """In a user namespace of its own, where the setting has no effect on the machine."""
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{_PLAIN_UID} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{_PLAIN_UID} {gid} 1")
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def run_as_plain_user(script: str, *, namespaces: bool = True, seconds: float = 120) -> tuple[int, str]:
    preparation = "become_plain_user" if namespaces else "forbid_namespaces"
    text = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.sandbox.test_machine import {preparation}
{preparation}()
os.execv(sys.executable, [sys.executable, "-c", {script!r}])
"""
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT, timeout=seconds)
    return result.returncode, result.stdout + result.stderr


_REFUSED_CALLS = {
    # Of x86_64 and aarch64, with the first argument that is refused; None: any.
    "seccomp": ({"x86_64": 157, "aarch64": 167}, 22),  # prctl(PR_SET_SECCOMP)
    "unshare": ({"x86_64": 272, "aarch64": 97}, None),
    "mount": ({"x86_64": 165, "aarch64": 40}, None),
    "setrlimit": ({"x86_64": 302, "aarch64": 261}, None),
}


def forbid_call(name: str) -> None:
    """This process and those below it get EPERM: a real filter, as that of a container is."""
    numbers, argument = _REFUSED_CALLS[name]
    load, jump_equal, answer = 0x20, 0x15, 0x06
    refusal, permission = 0x00050000 | errno.EPERM, 0x7FFF0000
    rest = [] if argument is None else [(load, 0, 0, 16), (jump_equal, 0, 1, argument)]
    instructions = [
        (load, 0, 0, 0),
        (jump_equal, 0, len(rest) + 1, numbers[platform.machine()]),
        *rest,
        (answer, 0, 0, refusal),
        (answer, 0, 0, permission),
    ]
    linux._prctl(linux._PR_SET_NO_NEW_PRIVS, 1)
    install_filter(b"".join(struct.pack("HBBI", *instruction) for instruction in instructions))


@pytest.mark.parametrize(
    ("call", "missing"),
    [
        ("seccomp", "seccomp filters (CONFIG_SECCOMP_FILTER)"),
        ("unshare", "namespaces"),
        ("mount", "mounts in a mount namespace"),
        ("setrlimit", "resource limits"),
    ],
)
def test_a_query_service_without_a_part_of_the_sandbox_does_not_start(call: str, missing: str, tmp_path: Path) -> None:
    text = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.sandbox.test_machine import forbid_call
forbid_call({call!r})
os.execv(sys.executable, [sys.executable, "-m", "tracelake", "query-service", "--home", {str(tmp_path)!r}])
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACE_")}
    command = [sys.executable, "-c", text]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, env=environment)
    assert result.returncode != 0
    printed = result.stdout + result.stderr
    assert missing in printed, printed
    assert "EPERM" in printed
    assert "Traceback" not in printed


def test_names_missing_user_namespaces() -> None:
    script = """
import asyncio
from tracelake.errors import TraceError
from tracelake.sandbox.server import SandboxServer
async def main():
    try:
        await SandboxServer("tracelake.sandbox.program").start()
    except TraceError as error:
        print(error.code, error.message)
asyncio.run(main())
"""
    _, text = run_as_plain_user(script, namespaces=False)
    assert text.startswith("sandbox_unavailable the sandbox needs user namespaces; this machine answered: ENOSPC"), text
    assert "user.max_user_namespaces" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already run as a plain user")
@pytest.mark.system
def test_escapes_fail_for_a_plain_user_too() -> None:
    script = """
import pytest, sys
status = pytest.main(["-q", "tests/sandbox/test_escapes.py", "tests/sandbox/test_endings.py"])
sys.exit(status)
"""
    status, text = run_as_plain_user(script)
    assert status == 0, text


def test_missing_file_is_not_a_missing_feature(computing: Playground) -> None:
    computing.mounts.append(Mount(source="/does/not/exist", target="/data"))
    with pytest.raises(TraceError, match="sandbox_file_missing"):
        computing.lines("say('ran')")


def test_refused_steps_are_named() -> None:
    error = explain_refusal("seccomp", errno.EINVAL)
    assert error.code == "sandbox_unavailable"
    assert "CONFIG_SECCOMP_FILTER" in error.message
    assert error.details == {
        "missing": "seccomp filters (CONFIG_SECCOMP_FILTER)",
        "received": "EINVAL at the step `seccomp`",
    }


def test_names_an_old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "host", "5.4.0-1", "#1", "x86_64")))
    with pytest.raises(TraceError, match=r"needs Linux 5\.14 or newer; this machine answered: 5\.4"):
        check_machine()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("profile", list(Profile))
def test_filters_are_valid_programs(machine: str, profile: Profile) -> None:
    """Each jump stays inside, and the last instruction refuses."""
    code = assemble_filter(profile, machine)
    instructions = [code[start : start + 8] for start in range(0, len(code), 8)]
    assert len(instructions) < 4096
    for position, instruction in enumerate(instructions):
        if instruction[0] & 7 == 5:
            assert position + 1 + max(instruction[2], instruction[3]) < len(instructions)
    assert instructions[-1] == b"\x06\x00\x00\x00" + (0x00050000 | errno.EPERM).to_bytes(4, "little")


def test_start_needs_no_running_loop_before() -> None:
    from tracelake.sandbox.server import SandboxServer

    async def start_and_stop() -> int | None:
        server = SandboxServer("tracelake.sandbox.program")
        await server.start()
        pid = server.pid
        await server.close()
        return pid

    pid = asyncio.run(start_and_stop())
    assert pid
    assert not Path(f"/proc/{pid}").exists() or sys.platform != "linux"
