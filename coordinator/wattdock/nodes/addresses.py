"""Which address and interface of this node lead to another one, for engines whose parts meet over the network."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress

# Source: netdevice(7), SIOCGIFADDR: a request of 40 bytes begins with the interface's name, its address is at 20 to 24.
SIOCGIFADDR, REQUEST_BYTES, ADDRESS = 0x8915, 40, slice(20, 24)
ANY_PORT = 9


def here(other: str) -> str:
    """Return this node's address on the way to another host; sends nothing.

    Raises:
        OSError: There is no way to it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((other, ANY_PORT))
        return str(way.getsockname()[0])


def free_port(address: str) -> int:
    """Return a port of an address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def engine_variables(address: str) -> dict[str, str]:
    """Return the variables by which engines' parts meet over the interface of one of this node's addresses."""
    variables = {"VLLM_HOST_IP": address}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{REQUEST_BYTES}s", name.encode())
            # An interface may have no address.
            with suppress(OSError):
                if socket.inet_ntoa(fcntl.ioctl(asked.fileno(), SIOCGIFADDR, request)[ADDRESS]) == address:
                    variables |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
    return variables
