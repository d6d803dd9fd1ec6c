"""The limits of a process's listeners, within the limit of open files of this process."""

from collections.abc import Sequence

from tracelake.http.connections import ListenerLimits
from tracelake.settings import Settings
from tracelake.settings.configs import take_config
from tracelake.stack import descriptors, listeners


def listener_limits(settings: Settings, names: Sequence[str] = listeners.LISTENERS) -> dict[str, ListenerLimits]:
    limits = {name: getattr(settings, f"{name}_connections") for name in names}
    connections = descriptors.share_connections(limits, descriptors.raise_limit())
    return {
        name: take_config(
            ListenerLimits,
            settings,
            "http_",
            connections=most,
            address_connections=min(settings.http_address_connections, most),
        )
        for name, most in connections.items()
    }
