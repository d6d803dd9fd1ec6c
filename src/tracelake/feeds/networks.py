"""Addresses that no feed may have, unless the stack's operator names the host.

The lists are our own: what `ipaddress` calls global differs between versions of Python. For IPv4 everything is allowed
that is not listed. For IPv6 only global unicast (2000::/3) is, without the parts that lead to IPv4 or are reserved: all
other forms (IPv4-mapped, NAT64, link-local, unique local, multicast) lie outside of it.
"""

import ipaddress
import socket
from typing import TypeAlias

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_REFUSED_4 = {
    "0.0.0.0/8": "of this network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "of a carrier's inner network",
    "127.0.0.0/8": "of the machine itself",
    "168.63.129.16/32": "a cloud's metadata",
    "169.254.0.0/16": "link-local",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "for documentation",
    "192.31.196.0/24": "reserved",
    "192.52.193.0/24": "reserved",
    "192.88.99.0/24": "a relay of 6to4",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "reserved",
    "198.18.0.0/15": "for benchmarks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
_REFUSED_6 = {
    "2001::/23": "reserved",
    "2001:db8::/32": "for documentation",
    "2002::/16": "a form of an IPv4 address (6to4)",
    "2620:4f:8000::/48": "reserved",
    "3fff::/20": "for documentation",
}
_OTHER_6 = {
    "::1/128": "of the machine itself",
    "::/128": "of this network",
    "::ffff:0:0/96": "a form of an IPv4 address (IPv4-mapped)",
    "::/96": "a form of an IPv4 address",
    "64:ff9b::/96": "a form of an IPv4 address (NAT64)",
    "64:ff9b:1::/48": "a form of an IPv4 address (NAT64)",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "private",
    "ff00::/8": "multicast",
}
"""Outside of global unicast; for the reason alone."""
_NETWORKS_4 = [(ipaddress.IPv4Network(network), reason) for network, reason in _REFUSED_4.items()]
_NETWORKS_6 = [(ipaddress.IPv6Network(network), reason) for network, reason in _REFUSED_6.items()]
_OTHERS_6 = [(ipaddress.IPv6Network(network), reason) for network, reason in _OTHER_6.items()]
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
_ISATAP = {0x00005EFE, 0x02005EFE}
"""The upper half of an interface id whose lower half is an IPv4 address."""


def refusal_of(address: IpAddress) -> str | None:
    """Why a public host may not have this address; None: it may."""
    if isinstance(address, ipaddress.IPv4Address):
        return next((reason for network, reason in _NETWORKS_4 if address in network), None)
    if address.scope_id is not None:
        return "link-local"
    if address not in _GLOBAL_6:
        return next((reason for network, reason in _OTHERS_6 if address in network), "reserved")
    if int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
        return "a form of an IPv4 address (ISATAP)"
    return next((reason for network, reason in _NETWORKS_6 if address in network), None)


def is_never_a_host(address: IpAddress) -> bool:
    """Addresses that even a named private host has only if it is named by this very address."""
    plain = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    item = plain or address
    return item.is_multicast or item.is_unspecified or item.is_link_local or str(item) == "168.63.129.16"


def is_own(address: IpAddress) -> bool:
    """Whether it is an address of this machine: its services must not be reached by a public address either."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
