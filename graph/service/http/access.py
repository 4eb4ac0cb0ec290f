"""Access control: keys, scopes, and the checks without keys."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from limits import parse_many
from limits.aio import storage, strategies
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from fairqr.base import errors
from fairqr.graph.service.configuration import Limits, ServiceSettings
from fairqr.graph.service.http.answers import OPENAI, Refused, answer_error
from fairqr.graph.service.http.bodies import lingering, read_body
from fairqr.graph.service.records import KEY_START, NOBODY, SCOPES, Scope
from fairqr.graph.service.store import Store

# Paths that need no key; nor do the files of the page.
OPEN = ("/", "/healthz", "/readyz", "/openapi.json", "/docs")

MCP_PATH = "/mcp"
_HOST = re.compile(r"(?:(?P<six>\[[0-9a-fA-F:.]+\])|(?P<name>[A-Za-z0-9.-]+))(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    Attributes:
        id: The id of the key; empty if no key is required.
        name: The name of the key; None if no key is required.
        scopes: What the caller may do.
    """

    id: str = NOBODY
    name: str | None = None
    scopes: tuple[Scope, ...] = SCOPES

    def may(self, scope: Scope) -> bool:
        """Return whether the caller has this scope, or one that includes it."""
        return any(SCOPES.index(own) >= SCOPES.index(scope) for own in self.scopes)


def caller_of(connection: Connection) -> Caller:
    """Return the caller of a request, as the guard found it."""
    caller: Caller = connection["state"]["caller"]
    return caller


def is_loopback(host: str) -> bool:
    """Return whether a name or an address means only this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def needs_keys(settings: ServiceSettings) -> bool:
    """Return whether requests need a key."""
    return settings.require_keys or not is_loopback(settings.host)


async def require_a_key(settings: ServiceSettings, store: Store) -> None:
    """Check that a key exists if requests need one.

    Raises:
        ConfigError: No key exists.
    """
    if needs_keys(settings) and not any(key.revoked is None for key in await store.keys()):
        why = "Keys are required" if settings.require_keys else f"{settings.host} is not loopback"
        raise errors.ConfigError(
            f"{why}, and there is no access key; make one with 'fairqr keys create NAME'."
        )


def needed(method: str, path: str) -> Scope | None:
    """Return the scope that a request needs, or None for the few open paths.

    Only listed paths are open, so a new route is never open by mistake.
    """
    if path in OPEN or path.startswith("/page/"):
        return None
    if path == "/metrics":
        return "admin"
    return "read" if method in ("GET", "HEAD", "OPTIONS") else "run"


class Throttle:
    """Counts the requests of each key, or of each address without a key.

    Each process counts on its own.

    Args:
        limits: The limits of the service.
    """

    def __init__(self, limits: Limits) -> None:
        self._rates = parse_many(limits.rate) if limits.rate else []
        self._limiter = strategies.SlidingWindowCounterRateLimiter(storage.MemoryStorage())

    async def count(self, who: str) -> None:
        """Count a request.

        Args:
            who: The key or the address.

        Raises:
            BusyError: The rate is exceeded.
        """
        for rate in self._rates:
            if await self._limiter.hit(rate, who):
                continue
            window = await self._limiter.get_window_stats(rate, who)
            raise errors.BusyError(
                f"You exceeded the limit of {rate}; wait, and ask less often.",
                retry_after=min(max(1.0, window.reset_time - time.time()), rate.get_expiry()),
                own=True,
            )


class Guard:
    """Refuses requests without the right key, those above the rate, and wrong bodies.

    Args:
        app: The guarded application.
        settings: The settings of the service.
        store: The store with the keys.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings, store: Store) -> None:
        self._app = app
        self._store = store
        self._throttle = Throttle(settings.limits)
        self._settings = settings
        self._needs_keys = needs_keys(settings)
        self._origins = settings.cors_origins

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request, messages = Request(scope, receive), list[Message]()

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        try:
            scope.setdefault("state", {})["caller"] = await self._admit(scope)
            if scope["method"] == "POST":
                body = await read_body(request, self._settings)
                messages.append({"type": "http.request", "body": body, "more_body": False})
        except ClientDisconnect:
            return None
        except (errors.FairqrError, Refused) as error:
            response = await answer_error(request, error)
            closes = response.headers.get("connection") == "close"
            return await response(scope, receive, lingering(receive, send) if closes else send)
        return await self._app(scope, replay, send)

    async def _admit(self, scope: Connection) -> Caller:
        headers = Headers(scope=scope)
        wanted = needed(scope["method"], scope["path"])
        if scope["path"] == MCP_PATH:  # even with a key, as MCP requires
            _check_origin(headers, self._origins)
        given = headers.get("authorization")
        if wanted is None or (given and not self._needs_keys and _is_foreign(given, scope["path"])):
            given = None
        if given is None and not self._needs_keys:
            _check_host(headers)
            _check_origin(headers, self._origins)
        if wanted is None:
            return Caller()
        if given is not None:
            caller = await self._caller(given, scope)
        elif self._needs_keys:
            raise errors.AccessError(
                "An access key is needed; send it as 'Authorization: Bearer fqr_…'."
            )
        else:
            caller = Caller()
        if not caller.may(wanted):
            own = ", ".join(caller.scopes) or "no scope"
            raise errors.ScopeError(
                f"This needs an access key with the scope '{wanted}'; yours has {own}."
            )
        await self._throttle.count(f"key {caller.id}" if caller.id else _address(scope))
        return caller

    async def _caller(self, given: str, scope: Connection) -> Caller:
        kind, _, secret = given.partition(" ")
        key = await self._store.key_for(secret.strip()) if kind.lower() == "bearer" else None
        if key is None:
            # Count guesses by address, so that they use up no key's rate.
            await self._throttle.count(_address(scope))
            raise errors.AccessError(
                "This access key does not exist or was revoked; send another one."
            )
        return Caller(key.id, key.name, key.scopes)


def _is_foreign(authorization: str, path: str) -> bool:
    """Return whether a request to OpenAI's paths has a token that cannot be our key.

    OpenAI's clients always send a token.
    """
    token = authorization.partition(" ")[2].strip()
    return path.startswith(OPENAI) and not token.startswith(KEY_START)


def _check_host(headers: Mapping[str, str]) -> None:
    """Refuse requests that name another host.

    A web page could otherwise point its own name at this machine, and read what is open here.

    Raises:
        NotAllowedError: The host is not this machine.
    """
    match = _HOST.fullmatch(headers.get("host", ""))
    if match is None or not is_loopback(match["six"] or match["name"]):
        raise errors.NotAllowedError(
            "Without access keys the service only answers to the name localhost; use that name, or "
            "set require_keys to serve others."
        )


def _check_origin(headers: Mapping[str, str], allowed: Collection[str]) -> None:
    """Refuse requests from web pages other than our own and those of ``cors_origins``.

    Raises:
        NotAllowedError: The page is not allowed.
    """
    origin = headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    if origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise errors.NotAllowedError(
            "The service does not answer web pages of other origins; add this one to cors_origins, "
            "or use a program."
        )


def _address(scope: Connection) -> str:
    return f"address {scope['client'][0] if scope.get('client') else ''}"
