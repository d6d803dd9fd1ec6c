"""Where workers find the RPC endpoints of chains, by name: `TRACE_RPC_<NAME>`, else `HOME/rpc.toml`.

Addresses carry keys, so they are no part of a DAG, and reach the workers of `trace up` through a file that only they
can read, not through their environment.
"""

import json
import os
import tomllib
from collections.abc import Mapping

from tracelake.processes.home import Home, write_private
from tracelake.processes.settings import SettingsError
from tracelake.spark.evm.endpoints import PREFIX, ResolveEndpoints, RpcEndpoint, endpoints_of


def keep_environment(home: Home, recorded: str | None = None) -> None:
    """What this process was told by its environment, for the workers that it starts; and the recorded chain's address,
    which was asked for by a setting and therefore comes first."""
    found = _from_environment(os.environ) | ({} if recorded is None else {"default": recorded})
    write_private(home.rpc_environment_file, json.dumps(found) + "\n")


def resolver(home: Home) -> ResolveEndpoints:
    """The files are read at each question: an address may change while a worker runs."""

    def resolve(name: str) -> tuple[RpcEndpoint, ...]:
        return endpoints_of(name, read_addresses(home) | _from_environment(os.environ))

    return resolve


def read_addresses(home: Home) -> dict[str, str]:
    """By name, separated by commas. What `trace up` was told by its environment comes before the file."""
    found: dict[str, str] = {}
    try:
        for name, said in tomllib.loads(home.rpc_file.read_text()).items():
            urls = said if isinstance(said, list) else [said]
            if not all(isinstance(url, str) for url in urls):
                raise SettingsError(f"{home.rpc_file}: {name} must be an address, or a list of them")
            found[name.lower()] = ",".join(urls)
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        raise SettingsError(f'{home.rpc_file} cannot be read, or is not TOML: name = ["https://..."]') from None
    try:
        kept: dict[str, str] = json.loads(home.rpc_environment_file.read_text())
    except (OSError, ValueError):
        kept = {}
    return found | kept


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(PREFIX) and value.strip()
    }
