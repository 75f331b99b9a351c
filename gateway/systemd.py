"""What systemd hands over, and what it is told: sockets by LISTEN_FDS, states by NOTIFY_SOCKET.

A socket that systemd holds outlives the gateway, so that over a restart no client is refused.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

FIRST = 3  # descriptor of the first socket
CLIENTS, OPERATORS = "clients", "operators"  # FileDescriptorName= of a socket unit


def sockets(environ: MutableMapping[str, str]) -> dict[str, socket.socket]:
    """The listening sockets that were handed over, by name: `clients` and `operators`, in this order if they
    have no names. The variables are taken out, as they are not for children. Raises ValueError."""
    count, pid = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if not count or pid != str(os.getpid()):
        return {}
    if not count.isdigit() or int(count) > 2:
        raise ValueError(f"LISTEN_FDS={count}: two sockets at most, for clients and operators")
    handed = [socket.socket(fileno=FIRST + i) for i in range(int(count))]
    if not {CLIENTS, OPERATORS}.issuperset(names) or len(set(names)) != len(handed):
        names = [CLIENTS, OPERATORS]
    for one in handed:
        one.set_inheritable(False)
        listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if one.family not in (socket.AF_INET, socket.AF_INET6) or not listens:
            raise ValueError("one of them does not listen on TCP; use ListenStream=")
    return dict(zip(names, handed, strict=False))


def tell(state: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Tell the service manager, if there is one: `READY=1`, `STOPPING=1`."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        try:
            manager.sendto(state.encode(), address.replace("@", "\0", 1))
        except OSError:
            return  # nobody listens any more; that is no reason not to serve
