"""Ports: loopback, on which processes of one machine meet, and those that shall be free."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from rlframe.doctor.finding import Finding
from rlframe.doctor.site import Site

__all__ = ["loopback", "port", "ports"]


def ports(site: Site) -> Iterator[Finding]:
    """Loopback, then each port that was asked for."""
    yield loopback()
    for number in site.ports:
        yield port(site.address, number)


def loopback(address: str = "127.0.0.1") -> Finding:
    """Whether a process can reach another one on this machine: listen, connect, accept."""
    try:
        with socket.create_server((address, 0)) as server:
            number = server.getsockname()[1]
            with socket.create_connection((address, number), timeout=5):
                server.accept()[0].close()
    except OSError as error:
        remedy = "ip link set lo up, and let no firewall block it"
        return Finding("fail", "loopback", f"{address}: {error.strerror or error}", remedy)
    return Finding("ok", "loopback", f"processes reach each other on {address}")


def port(address: str, number: int) -> Finding:
    """Whether one can listen on a port: it is free, and this user may take it."""
    subject = f"port {number}"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, number), family=family).close()
    except OSError as error:
        remedies = {
            errno.EADDRINUSE: f"ss -ltnp 'sport = :{number}' says who listens; take another port",
            errno.EACCES: "take a port above 1023",
            errno.EADDRNOTAVAIL: "take an address of this machine: ip address",
        }
        remedy = remedies.get(error.errno or 0, "take another port or --address")
        return Finding("fail", subject, f"{address}: {error.strerror or error}", remedy)
    return Finding("ok", subject, f"free on {address}")
