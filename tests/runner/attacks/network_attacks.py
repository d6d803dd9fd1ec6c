"""Attacks on the network: other machines, services of this one, sockets of every kind."""

# ruff: noqa: E501 - a table has one row per line

from tests.runner.attacks.catalogue import Attack, Place, in_native

UNREACHABLE = frozenset({"ENETUNREACH", "EHOSTUNREACH", "EADDRNOTAVAIL"})
CLOSED = frozenset({"ECONNREFUSED"})
NO_FILE = frozenset({"ENOENT", "ECONNREFUSED", "EACCES"})
NO_FAMILY = frozenset({"EAFNOSUPPORT"})
NO_PROTOCOL = frozenset({"EPROTONOSUPPORT"})
SERVICES = {
    "{port}": "a service on loopback that does listen",
    "5432": "Postgres",
    "22": "SSH",
    "80": "HTTP",
    "443": "HTTPS",
    "2375": "the container engine",
    "8333": "the object store",
    "9333": "the master of the object store",
    "8888": "the filer of the object store",
    "6379": "a cache",
    "10250": "the agent of a cluster",
}
ADDRESSES = {
    "192.0.2.1:443": "another machine",
    "[2001:db8::1]:443": "another machine by IPv6",
    "169.254.169.254:80": "the metadata of a cloud's machine",
    "[fd00:ec2::254]:80": "the same by IPv6",
    "169.254.170.2:80": "credentials of a cloud's container",
    "10.0.0.1:443": "a private network",
    "172.17.0.1:80": "the network of containers",
    "{address}:{port}": "this machine by its own address",
    "203.0.113.53:53": "a name server",
}
DATAGRAMS = {
    "192.0.2.1:53": "names as data, to a public name server",
    "169.254.169.253:53": "the name server of a cloud",
    "255.255.255.255:9": "all machines of the network",
    "224.0.0.1:9": "all machines by multicast",
    "[2001:db8::1]:53": "another machine by IPv6",
}
SOCKET_FILES = {
    "{socket_file}": "a socket of the runner, by its path",
    "@{abstract}": "a socket of the runner, by its abstract name",
    "@victim": "an abstract socket of another task",
    "/run/docker.sock": "the container engine",
    "/run/dbus/system_bus_socket": "services of the system",
    "/run/systemd/private": "the first process of the machine",
    "@/tmp/.X11-unix/X0": "the screen",
    "/var/run/nscd/socket": "the cache of names",
}
FAMILIES = {
    3: "amateur radio", 4: "IPX", 5: "AppleTalk", 6: "NetRom", 8: "ATM", 9: "X.25", 11: "Rose", 12: "DECnet",
    15: "keys of IPsec", 16: "netlink: interfaces, routes, firewalls", 17: "packets of any kind", 18: "Ash", 19: "Econet",
    20: "ATM circuits", 21: "RDS", 22: "SNA", 23: "infrared", 24: "PPPoE", 26: "LLC", 27: "InfiniBand", 28: "MPLS",
    29: "CAN", 30: "TIPC", 31: "Bluetooth", 33: "RxRPC", 35: "phones", 36: "IEEE 802.15.4", 37: "CAIF",
    38: "the kernel's algorithms", 39: "NFC", 40: "vsock: the host of the virtual machine", 41: "KCM", 42: "Qualcomm's IPC",
    43: "SMC", 44: "XDP: packets past the stack", 45: "MCTP",
}  # fmt: skip
PROTOCOLS = {
    1: "ICMP", 2: "IGMP", 33: "DCCP", 47: "GRE", 50: "ESP", 115: "L2TP", 132: "SCTP", 136: "UDP-Lite", 255: "raw IP", 262: "MPTCP",
}  # fmt: skip


def _net(name: str, tries: str, verb: str, *arguments: str, contained: frozenset[str]) -> Attack:
    return Attack(name=name, tries=tries, place=Place.NETWORK, verb=verb, arguments=arguments, contained=contained)


_FAMILIES = (
    _net(f"sockets of family {number}", f"{tries}; of each kind, and pairs", "family", str(number), contained=NO_FAMILY)
    for number, tries in FAMILIES.items()
)
_PROTOCOLS = (
    _net(f"sockets of protocol {number}", f"{tries} over IPv4 and IPv6", "protocol", str(number), contained=NO_PROTOCOL)
    for number, tries in PROTOCOLS.items()
)
_NAME = frozenset({"unresolved", "EAI_AGAIN", "ENOTFOUND", "ECONNREFUSED"})
ATTACKS = (
    *(_net(f"connect to 127.0.0.1:{port}", tries, "tcp", f"127.0.0.1:{port}", contained=CLOSED) for port, tries in SERVICES.items()),
    *(_net(f"connect to {address}", tries, "tcp", address, contained=UNREACHABLE) for address, tries in ADDRESSES.items()),
    _net("connect to 0.0.0.0", "this machine by the empty address", "tcp", "0.0.0.0:{port}", contained=CLOSED),
    _net("connect to [::1]", "this machine by IPv6", "tcp", "[::1]:{port}", contained=CLOSED | UNREACHABLE),
    _net("connect to a mapped address", "IPv4 as IPv6", "tcp", "[::ffff:127.0.0.1]:{port}", contained=CLOSED),
    _net("connect to another task's port", "its loopback is another one", "tcp", "127.0.0.1:{victim_port}", contained=CLOSED),
    *(_net(f"datagram to {address}", tries, "udp", address, contained=UNREACHABLE | {"EINVAL"}) for address, tries in DATAGRAMS.items()),
    *(_net(f"Unix socket {name}", tries, "unix", name, contained=NO_FILE) for name, tries in SOCKET_FILES.items()),
    _net("take the Runtime API's port", "to answer for the runner", "bind", "127.0.0.1:9001", contained=frozenset({"EADDRINUSE"})),
    _net("take the proxy's port", "to answer for the platform", "bind", "127.0.0.1:9002", contained=frozenset({"EADDRINUSE"})),
    _net("take a port of the machine", "a privileged one", "bind", "127.0.0.1:80", contained=frozenset({"EACCES"})),
    _net("take a foreign address", "an address of another machine", "bind", "192.0.2.1:8080", contained=UNREACHABLE),
    in_native(_net("packets of TCP", "forged packets", "call", "41", "2", "3", "6", contained=frozenset({"EPERM"}))),
    in_native(_net("bring an interface up", "an ioctl on interfaces", "call", "16", "0", "35092", "0", contained=frozenset({"ENOTTY"}))),
    *(in_native(attack) for attack in (*_FAMILIES, *_PROTOCOLS)),
)  # fmt: skip

NAMES = tuple(
    Attack(
        name=f"resolve {name}",
        tries=tries,
        place=Place.NETWORK,
        verb=verb,
        arguments=(name,),
        contained=_NAME,
        languages=languages,
        unsuitable="a static program has no resolver: its questions are datagrams",
    )
    for name, tries, verb, languages in (
        ("example.com", "names", "name", ("python", "node")),
        ("metadata.google.internal", "the metadata of a cloud", "name", ("python", "node")),
        ("example.org", "names by questions of its own", "query", ("node",)),
    )
)
ATTACKS = (*ATTACKS, *NAMES)
