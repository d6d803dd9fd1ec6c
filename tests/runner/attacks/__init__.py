"""Attacks on the sandbox of users' functions, in Python, Node and Rust; the table of all is README.md."""

from tests.runner.attacks import (
    file_attacks,
    kernel_attacks,
    network_attacks,
    process_attacks,
    request_attacks,
    resource_attacks,
)

ATTACKS = (
    *file_attacks.ATTACKS,
    *process_attacks.ATTACKS,
    *network_attacks.ATTACKS,
    *kernel_attacks.ATTACKS,
    *resource_attacks.ATTACKS,
    *request_attacks.ATTACKS,
)
