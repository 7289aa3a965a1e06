"""Who is at the other end of a connection: a user of this machine, as its kernel says, or an address elsewhere."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from wattdock.opening import is_trusted

# sock_diag(7): the request and its answer, a connection that is open, no cookie.
SOCK_DIAG_BY_FAMILY, NETLINK_SOCK_DIAG, ESTABLISHED, ANY = 20, 4, 1, 0xFFFFFFFF
HEADER, REQUEST = struct.Struct("=IHHII"), struct.Struct("=BBBxI")
# In an answer: its kind, the connection's state, its user.
KIND_AT, STATE_AT, UID_AT = 4, 17, 80


def peer_of(client: tuple[str, int | None], server: tuple[str, int | None]) -> int | str:
    """Return the user id of who opened a connection on this machine; the client's address where the kernel has none.

    Args:
        client, server: Address and port of either end, as the server has them.
    """
    family = socket.AF_INET6 if ":" in client[0] else socket.AF_INET
    with (
        suppress(OSError, struct.error),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as asking,
    ):
        ends = (socket.inet_pton(family, host).ljust(16, b"\0") for host, _ in (client, server))
        connection = struct.pack("!HH", client[1], server[1]) + b"".join(ends) + struct.pack("=III", 0, ANY, ANY)
        request = REQUEST.pack(family, socket.IPPROTO_TCP, 0, ANY) + connection
        asking.send(HEADER.pack(HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, 1, 0, 0) + request)
        answer = asking.recv(4096)
        # A connection that is being closed has no user any more, which reads as root.
        if struct.unpack_from("=H", answer, KIND_AT)[0] == SOCK_DIAG_BY_FAMILY and answer[STATE_AT] == ESTABLISHED:
            return int(struct.unpack_from("=I", answer, UID_AT)[0])
    return client[0]


def is_owner(peer: int | str) -> bool:
    """Whether a peer is the serving user, or root."""
    return isinstance(peer, int) and is_trusted(peer)
