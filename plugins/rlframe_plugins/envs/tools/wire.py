"""Messages between the driver and an environment's process: a length, then JSON or a pickle.

The driver pickles (rows may hold anything); what comes back is JSON, since a process in which a
model's calls run is not trusted.
"""

from __future__ import annotations

import socket
import struct

__all__ = ["LENGTH", "MOST_BYTES", "receive", "receive_exactly", "send"]

LENGTH = struct.Struct("!I")
MOST_BYTES = 64 * 2**20
"""Longest message, bytes."""


def send(connection: socket.socket, payload: bytes) -> None:
    """Send one message."""
    connection.sendall(LENGTH.pack(len(payload)) + payload)


def receive(connection: socket.socket) -> bytes | None:
    """The next message; None at the end of the connection."""
    head = receive_exactly(connection, LENGTH.size)
    if head is None:
        return None
    return receive_exactly(connection, LENGTH.unpack(head)[0])


def receive_exactly(connection: socket.socket, count: int) -> bytes | None:
    """So many bytes; None where the connection ends before."""
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 2**20))
        if not part:
            return None
        parts += part
    return bytes(parts)
