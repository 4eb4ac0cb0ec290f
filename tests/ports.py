"""Ports for servers that are told theirs before they start."""

from __future__ import annotations

import itertools
import os
import socket

_EACH = 1500
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw7").removeprefix("gw"))
_PORTS = itertools.cycle(range(20_000 + _EACH * (_WORKER % 8), 20_000 + _EACH * (_WORKER % 8 + 1)))
_NEXT = itertools.islice(_PORTS, os.getpid() % _EACH, None)


def free_port() -> int:
    """Return a port on loopback that nobody listens on.

    The system gives ports from 32768 to whoever asks for any, so it gives this one to nobody until
    the server is there; and other workers of pytest have ports of their own. Nobody else who runs
    these tests is given it while this process lives, which keeps the same port of UDP.
    """
    for port in _NEXT:
        claim = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as probe:
            try:
                claim.bind(("127.0.0.1", port))
                probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
        claim.detach()
        return port
    raise AssertionError  # they never end
