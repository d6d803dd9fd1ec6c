"""Ports of object stores are reserved between their choice and the moment when the program binds them."""

import subprocess
import sys

from tracelake.stack.machine import reserve_port
from tracelake.stack.seaweedfs import StorePorts

_CHOOSE = """
import dataclasses
from tracelake.stack.seaweedfs import StorePorts
print(*dataclasses.astuple(StorePorts.choose()), flush=True)
input()
"""


def test_a_port_is_reserved_until_the_process_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _CHOOSE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        ports = [int(port) for port in other.stdout.readline().split()]
        assert len(ports) == 4
        assert not any(map(reserve_port, ports))
        other.communicate("\n")
    assert all(map(reserve_port, ports))


def test_a_process_may_reserve_its_own_port_again() -> None:
    ports = StorePorts.choose()
    assert reserve_port(ports.s3)
