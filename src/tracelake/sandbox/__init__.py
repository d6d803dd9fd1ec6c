"""Isolation of untrusted work on Linux, without root and without docker.

A sandbox is one process (and, for programs, its children) in user, mount, process id, network, IPC, host name and
cgroup namespaces of its own: no network, no environment, no capability, a read-only root directory with exactly the
named files, an allowlist of system calls, and limits on time, memory, CPU, files and processes. It ends at its
deadline, and with the service.

- `spec`: what a sandbox contains, its limits, and how it ended.
- `server`: the service's side. `fork_server`, `monitor`: the processes between the service and the sandbox.
- `confinement`, `root_directory`, `seccomp`, `syscalls`, `linux`: the steps of the set-up.
- `program`: runs a command line. `machine`: what a machine lacks.

The threat model is docs/adr/0033-sandbox.md.
"""
