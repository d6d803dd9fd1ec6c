"""The listener sockets, bound by the supervisor and handed to the services by file descriptor.

So the ports stay the same while a Dispatcher restarts, and a client that connects meanwhile waits in the
backlog instead of being refused. Where they are free they also stay from one `trace up` to the next.
`TRACE_LISTEN_FDS="public=3,task=4,internal=5"` names the descriptors.
"""

import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence

from tracelake.settings import Settings, SettingsError
from tracelake.stack.machine import PostgresError, free_port

LISTENERS = ("public", "task", "internal")
"""Of the Dispatcher."""
QUERY_LISTENERS = ("query", "query_task")
"""Of the Query Service."""
RUNNER_LISTENERS = ("runner",)
VARIABLE = "TRACE_LISTEN_FDS"
_BACKLOG = 2048


def bind(
    settings: Settings, before: Mapping[str, int] | None = None, names: Sequence[str] = LISTENERS
) -> dict[str, socket.socket]:
    """Bind all of them or none. A port that no setting names is the one of `before` if it is free, else any."""
    bound: dict[str, socket.socket] = {}
    try:
        for name in names:
            host, port = settings.bind_host_of(name), getattr(settings, f"{name}_port")
            if port or before is None:
                bound[name] = bind_one(name, host, port)
            else:
                bound[name] = _bind_again(name, host, before.get(name, 0))
    except BaseException:
        for listener in bound.values():
            listener.close()
        raise
    return bound


def _bind_again(name: str, host: str, port: int) -> socket.socket:
    """The port of the run before; or one that has good chances to be free the next time too."""
    if port:
        with contextlib.suppress(SettingsError):
            return bind_one(name, host, port)
    with contextlib.suppress(SettingsError, PostgresError):
        return bind_one(name, host, free_port(host))
    return bind_one(name, host, 0)


def bind_one(name: str, host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except OSError:
        raise _foreign_address(name, host) from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
            raise _foreign_address(name, host) from None
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(
            f"the {name} listener cannot bind {host}:{port} ({reason}); set {name}_port to another port, "
            "or to 0 for a free one"
        ) from None
    return listener


def _foreign_address(name: str, host: str) -> SettingsError:
    setting = f"{name}_bind_host" if name in ("internal", "runner") else f"{name}_bind_host or bind_host"
    return SettingsError(f"{setting}: {host} is not an address of this machine")


def is_loopback(listener: socket.socket) -> bool:
    """Whether only programs on this machine can reach the listener."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url(listener: socket.socket, host: str) -> str:
    """The address by which a program on this machine reaches the listener."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
    return _url(everywhere.get(host, host), listener)


def shared_urls(listeners: Mapping[str, socket.socket], public_host: str | None) -> dict[str, str]:
    """The addresses by which other machines reach the listeners that are open to them; none without `public_host`."""
    if public_host is None:
        return {}
    return {name: _url(public_host, listener) for name, listener in listeners.items() if not is_loopback(listener)}


def _url(address: str, listener: socket.socket) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"https://{host}:{listener.getsockname()[1]}"


def to_variable(listeners: Mapping[str, socket.socket]) -> str:
    return ",".join(f"{name}={listener.fileno()}" for name, listener in listeners.items())


def inherited(
    environ: Mapping[str, str] | None = None, names: Sequence[str] = LISTENERS
) -> dict[str, socket.socket] | None:
    """The sockets that a supervisor handed to this process, or None if there is no supervisor."""
    text = (os.environ if environ is None else environ).get(VARIABLE)
    if not text:
        return None
    sockets: dict[str, socket.socket] = {}
    try:
        for item in text.split(","):
            name, number = item.split("=")
            listener = socket.socket(fileno=int(number))
            listener.set_inheritable(False)
            sockets[name] = listener
    except (ValueError, OSError):
        raise SettingsError(f"{VARIABLE} does not name open sockets; it is set by `trace up` alone") from None
    if set(sockets) != set(names):
        raise SettingsError(f"{VARIABLE} must name exactly {', '.join(names)}")
    return sockets
