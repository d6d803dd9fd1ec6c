"""The RPC endpoints of chains for workers, by org and name: from the environment, else from `HOME/rpc.toml`.

An endpoint costs money, and its address carries a key, so each belongs to an org, and a task reaches those of its own
org alone. `TRACE_RPC_<NAME>`, and what stands outside the tables of the file, is of the stack's own org (the setting
`org`); `TRACE_RPC_<ORG>__<NAME>`, and the table of an org, is of that one. The recorded chain costs nothing and is for
everybody.

Addresses are no part of a DAG, and reach the workers of `trace up` through a file that only they can read, not through
their environment.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from tracelake.settings import SettingsError
from tracelake.settings.home import Home, write_private
from tracelake.spark.evm.endpoints import PREFIX, ResolveEndpoints, RpcEndpoint, endpoints_of

OrgAddresses: TypeAlias = dict[str, dict[str, str]]
"""The URLs of nodes, separated by commas, by org and name of the endpoints."""

_ORG = re.compile(r"[a-z][a-z0-9_]{0,127}", re.ASCII)
_DEFAULT = "default"


class StackAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses that `trace up` hands to its workers."""

    orgs: OrgAddresses = {}
    recorded: str | None = None
    """The recorded chain, which was asked for by a setting and therefore comes before any other `default`."""


def keep_environment(home: Home, own_org: str, recorded: str | None = None) -> None:
    """Stores the addresses of the environment, and that of the recorded chain, for the workers of this process."""
    addresses = StackAddresses(orgs=_from_environment(os.environ, own_org), recorded=recorded)
    write_private(home.rpc_environment_file, msgspec.json.encode(addresses) + b"\n")


def resolver(home: Home, own_org: str) -> ResolveEndpoints:
    """The files are read at each question: an address may change while a worker runs."""

    def resolve(org: str, name: str) -> tuple[RpcEndpoint, ...]:
        addresses = read_addresses(home, own_org, org) | _from_environment(os.environ, own_org).get(org, {})
        variable = name.upper() if org == own_org else f"{org.upper()}__{name.upper()}"
        place = "outside the tables" if org == own_org else f"in the table [{org}]"
        # The same words whether another org has endpoints of this name or nobody has.
        absent = (
            f"the org {org} has no RPC endpoints called {name!r}: set {PREFIX}{variable} on the workers to the URLs of"
            f" the nodes, separated by commas, or name them in HOME/rpc.toml, {place}"
        )
        return endpoints_of(name, addresses, absent=absent)

    return resolve


def read_addresses(home: Home, own_org: str, org: str) -> dict[str, str]:
    """The addresses of one org, by name. Those of the environment of `trace up` come before those of the file."""
    try:
        stack_addresses = msgspec.json.decode(home.rpc_environment_file.read_bytes(), type=StackAddresses)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        stack_addresses = StackAddresses()
    recorded = {} if stack_addresses.recorded is None else {_DEFAULT: stack_addresses.recorded}
    return _read_file(home, own_org).get(org, {}) | stack_addresses.orgs.get(org, {}) | recorded


def _read_file(home: Home, own_org: str) -> OrgAddresses:
    try:
        document = tomllib.loads(home.rpc_file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        raise SettingsError(f'{home.rpc_file} cannot be read, or is not TOML: name = ["https://..."]') from None
    tables: OrgAddresses = {own_org: {}}
    for key, value in document.items():
        if isinstance(value, dict):
            if not _ORG.fullmatch(key):
                raise SettingsError(f"{home.rpc_file}: [{key}] is not the name of an org")
            table = {name.lower(): _urls(home, f"{key}.{name}", urls) for name, urls in value.items()}
            tables[key] = tables.get(key, {}) | table
        else:
            tables[own_org] = {key.lower(): _urls(home, key, value)} | tables[own_org]
    return tables


def _urls(home: Home, name: str, value: object) -> str:
    items = value if isinstance(value, list) else [value]
    urls = [url for url in items if isinstance(url, str)]
    if len(urls) < len(items):
        raise SettingsError(f"{home.rpc_file}: {name} must be an address, or a list of them")
    return ",".join(urls)


def _from_environment(environ: Mapping[str, str], own_org: str) -> OrgAddresses:
    """The first `__` ends the org; a variable without one is of the stack's own org."""
    tables: OrgAddresses = {}
    for variable, value in environ.items():
        if variable.startswith(PREFIX) and value.strip():
            org, separator, name = variable.removeprefix(PREFIX).lower().partition("__")
            tables.setdefault(org if separator else own_org, {})[name if separator else org] = value
    return tables
