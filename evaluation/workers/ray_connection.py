"""The connection to a Ray: one that is there, or one that is started for a run."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from fairqr.base.errors import InputError, WorkersError, one_line

__all__ = ["connected", "reason_of"]

FOUND = "ray"
LOCAL = "ray://local"
CONNECT_SECONDS = 5.0
OBJECT_STORE_BYTES = 256 * 2**20


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a Ray, or start one, and let go of it in the end.

    Args:
        address: ``ray``, ``ray://local`` or ``ray://HOST:PORT``.

    Raises:
        InputError: Ray is not installed.
        WorkersError: It cannot be reached, or has other versions.
    """
    _prepare(address)
    try:
        import ray
    except ImportError:
        raise InputError(
            "Workers on Ray need the extra 'ray'; install it with: pip install 'fairqr[ray]'"
        ) from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        with warnings.catch_warnings(action="ignore"):
            if address == LOCAL:
                ray.init("local", **options, **own)
            elif address == FOUND and (named := os.environ.get("RAY_ADDRESS")):
                address = named
                ray.init(named, **options)
            elif address == FOUND:
                try:
                    ray.init("auto", **options)
                except ConnectionError:
                    ray.init("local", **options, **own)
            else:
                _check_listens(address)
                _join(address, options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise WorkersError(
            f"There is no connection to the workers at {address} ({reason_of(error)}); start Ray "
            "there with 'ray start --head --ray-client-server-port PORT', with the same versions "
            "of Ray and Python and the same RAY_AUTH_TOKEN as here."
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _prepare(address: str) -> None:
    """Set what Ray reads from the environment when it is imported, unless the user has."""
    # Nothing is told to Ray's makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "ray" in sys.modules or os.environ.get("RAY_AUTH_MODE"):
        return
    has_token = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if address == LOCAL and not has_token:
        # It listens on all addresses of the machine; the token is known to this run alone.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        has_token = True
    if has_token:
        os.environ["RAY_AUTH_MODE"] = "token"


def _join(address: str, options: dict[str, Any]) -> None:
    """Connect to a cluster, and once more where its own process for this client did not start."""
    import ray

    try:
        ray.init(address, **options)
    except ConnectionError as error:
        if "Initialization failure" not in str(error):
            raise
        ray.shutdown()
        ray.init(address, **options)


def reason_of(error: BaseException) -> str:
    """Return what went wrong, in part of a sentence."""
    said = str(getattr(error, "strerror", None) or error).strip()
    # A traceback of the server's ends with what matters.
    said = said.splitlines()[-1] if "Traceback" in said else said
    return one_line(said, 200).rstrip(".")


def _check_listens(address: str) -> None:
    """Fail at once where nothing listens; Ray tries for half a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OverflowError:
        raise ConnectionError("there is no such port") from None
