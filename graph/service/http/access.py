"""The guard: keys, scopes, rates, and the checks without keys."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from fastapi import HTTPException
from limits import parse_many
from limits.aio import storage, strategies
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as HttpScope

from fairqr.base import errors
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.http.answers import CLOSES, OPENAI, answer_error
from fairqr.graph.service.http.bodies import RERANK, read_body
from fairqr.graph.service.http.returning import ReturnTimes
from fairqr.graph.service.records import KEY_ID, KEY_START, NOBODY, SCOPES, AccessKey, Scope
from fairqr.graph.service.slots import most_of
from fairqr.graph.service.store import Store, database

OPEN = ("/", "/healthz", "/readyz", "/openapi.json")
"""Paths that need no key; nor do the files of the page."""

MCP_PATH = "/mcp"

_READS = ("GET", "HEAD", "OPTIONS")
_ONCE = ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Origin")
_ONLY_READS = {"Allow": "GET, HEAD", **CLOSES}

SOON = 2.0
"""The seconds after which the first client that found no room may come again."""

A_MOMENT = 0.2
"""If a body takes more seconds, its key is checked again."""

_HOST = re.compile(r"(?:(?P<six>\[[0-9a-fA-F:.]+\])|(?P<name>[A-Za-z0-9.-]+))(?::\d{1,5})?")
"""The header Host: an address of IPv6 or a name, and perhaps a port."""

ANYBODY = AccessKey(id=NOBODY, name="", scopes=SCOPES, created=0, sha256="")
"""The access key of everybody if no key is required."""


def access_key_of(scope: HttpScope) -> AccessKey:
    """Return the access key of a request, as the guard has set it."""
    access_key: AccessKey = scope["state"]["access_key"]
    return access_key


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
    if not needs_keys(settings):
        return
    keys = await store.keys()
    if any(key.revoked is None for key in keys):
        return

    reason = f"{settings.host} is not loopback"
    if settings.require_keys:
        reason = "Keys are required"
    raise errors.ConfigError(
        f"{reason}, and there is no access key; make one with 'fairqr keys create NAME'."
    )


def needed_scope(method: str, path: str) -> Scope | None:
    """Return the scope that a request needs, or None for the few open paths.

    Only listed paths are open, so a new route is never open by mistake.
    """
    if path in OPEN or path.startswith("/page/"):
        return None
    if path == "/metrics":
        return "admin"
    return "read" if method in _READS else "run"


class Guard:
    """Refuses requests without a valid key, requests above the limits, and wrong bodies.

    Args:
        app: The guarded application.
        settings: The settings of the service.
        store: The store with the keys.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings, store: Store) -> None:
        self._app = app
        self._settings = settings
        self._store = store
        self._needs_keys = needs_keys(settings)

        self._rates = parse_many(settings.traffic.rate) if settings.traffic.rate else []
        self._limiter = strategies.SlidingWindowCounterRateLimiter(storage.MemoryStorage())
        self._return_times = ReturnTimes()

        self._valid_ids: set[str] = set()
        """The ids of the keys that were ever valid."""
        self._look_locks: dict[str, asyncio.Lock] = {}
        """A lock for each secret that is looked up."""
        self._next_looks: dict[str, asyncio.Task[AccessKey | None]] = {}
        """The look for each secret that has not begun yet."""

        self._under_way = 0
        self._under_way_by: Counter[str] = Counter()
        """The requests under way of each key, and to open paths from each address."""
        self._arriving: Counter[str] = Counter()
        """The bodies under way of each key, and from each address without one."""

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["path"] == f"{MCP_PATH}/":  # as many clients write it
            scope["path"] = MCP_PATH
        request = Request(scope, receive)
        is_probe = scope["path"] == "/healthz"
        wanted_scope = needed_scope(scope["method"], scope["path"])

        messages = list[Message]()
        shares = dict[str, int]()
        has_room = is_probe  # whether the client may go on sending
        try:
            if not is_probe:
                self._require_room()
            has_room = True
            access_key = await self._admit(scope, wanted_scope)
            scope.setdefault("state", {})["access_key"] = access_key
            database.current_key_id.set(access_key.id)

            if scope["method"] == "POST":
                has_room = False
                body = await self._receive_body(request, access_key)
                messages.append({"type": "http.request", "body": body, "more_body": False})
                has_room = True
            if not is_probe:
                shares = self._shares_of(scope, access_key, is_open=wanted_scope is None)
                self._require_room(shares)
        except ClientDisconnect:
            return
        except (errors.FairqrError, HTTPException) as error:
            response = await answer_error(request, error)
            if isinstance(error, errors.BusyError) and not has_room:
                # There is no room either for clients that go on sending.
                response.headers["connection"] = "close"
            await response(scope, receive, send)
            return

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        with self._counted(shares.keys()):
            await self._app(scope, replay, send)

    def _shares_of(
        self, scope: HttpScope, access_key: AccessKey, *, is_open: bool
    ) -> dict[str, int]:
        """Return for whom a request counts, and how many of each may be under way.

        Clients without a key have no share, except on open paths.
        """
        traffic = self._settings.traffic
        if is_open:
            return {_address(scope): traffic.arriving}
        if access_key.id == NOBODY:
            return {}

        shares = {f"key {access_key.id}": most_of(traffic.requests, traffic.share)}
        if scope["method"] == "POST":
            # Each is a run at most, and may end a moment after its run; more are refused anyway.
            limit = 2 * traffic.live
            if scope["path"] == MCP_PATH:
                # Tools would refuse them after much work, and with a status that no client waits
                # for.
                limit = traffic.live
            shares[f"POST of key {access_key.id}"] = limit
        return shares

    @contextmanager
    def _counted(self, clients: Collection[str]) -> Iterator[None]:
        """Count a request as under way, for each of the clients too."""
        self._under_way += 1
        self._under_way_by.update(clients)
        try:
            yield
        finally:
            self._under_way -= 1
            for client in clients:
                _decrement(self._under_way_by, client)

    def _require_room(self, shares: Mapping[str, int] | None = None) -> None:
        """Refuse a request if too many are under way, in all or of one of its clients.

        Args:
            shares: How many may be under way of each client that the request counts for.

        Raises:
            BusyError: There is no room.
        """
        limit = self._settings.traffic.requests
        if self._under_way >= limit:
            sentence = f"The service has {limit:,} requests under way; try again later."
            raise self._busy("everybody", sentence, is_own=False)

        for client, share in (shares or {}).items():
            if self._under_way_by[client] >= share:
                owner = "Your address" if client.startswith("address") else "Your key"
                sentence = (
                    f"{owner} has {share:,} requests under way, streams too; let some end first."
                )
                raise self._busy(client, sentence)

    async def _receive_body(self, request: Request, access_key: AccessKey) -> bytes:
        """Return the body of a request; if it took long, check its key again.

        Raises:
            FairqrError: The body may not come, is wrong, or its key was revoked meanwhile.
            HTTPException: The body is wrong.
        """
        started = time.monotonic()
        body = await self._body(request, access_key)
        took_long = time.monotonic() - started > A_MOMENT
        if access_key.id and took_long:
            await self._access_key(request.headers["authorization"], request.scope)
        return body

    async def _body(self, request: Request, access_key: AccessKey) -> bytes:
        """Return the body of a request. Until it has arrived, it only counts for its client.

        Raises:
            BusyError: Too many of the key, or from the address without one, are on their way.
        """
        client = _client_of(access_key, request.scope)
        limit = self._settings.traffic.arriving
        if self._arriving[client] >= limit:
            origin = "of your key" if access_key.id else "from your address"
            sentence = f"{limit:,} bodies {origin} are on their way; send them whole."
            raise self._busy(client, sentence)

        self._arriving[client] += 1
        try:
            return await read_body(request, self._settings)
        finally:
            _decrement(self._arriving, client)

    async def _admit(self, scope: HttpScope, wanted_scope: Scope | None) -> AccessKey:
        """Return the access key of a request that may be served.

        Args:
            scope: The connection.
            wanted_scope: The scope that the request needs; None for an open path.

        Raises:
            FairqrError: It may not.
        """
        headers = Headers(scope=scope)
        _require_one_meaning(headers)
        allowed_origins = self._settings.cors_origins
        if scope["path"] == MCP_PATH:  # even with a key, as MCP requires
            _check_origin(headers, allowed_origins)

        authorization: str | None = None
        if wanted_scope is not None:
            authorization = self._authorization_of(headers, scope["path"])
        if authorization is None and not self._needs_keys:
            _check_host(headers)
            _check_origin(headers, allowed_origins)

        if wanted_scope is None:
            if scope["method"] not in _READS:  # before its body is read
                raise HTTPException(
                    405, {"detail": "This path can only be read; send GET."}, _ONLY_READS
                )
            return ANYBODY

        if authorization is not None:
            access_key = await self._access_key(authorization, scope)
        elif self._needs_keys:
            raise errors.AccessError(
                "An access key is needed; send it as 'Authorization: Bearer fqr_…'."
            )
        else:
            access_key = ANYBODY
        await self._count(_client_of(access_key, scope))

        # A key names all scopes that its highest one includes.
        if wanted_scope not in access_key.scopes:
            scopes = ", ".join(access_key.scopes)
            raise errors.ScopeError(
                f"This needs an access key with the scope '{wanted_scope}'; yours has {scopes}."
            )
        return access_key

    def _authorization_of(self, headers: Headers, path: str) -> str | None:
        """Return the header with the access key, unless the token there need not be one."""
        authorization = headers.get("authorization")
        if self._needs_keys or not authorization:
            return authorization
        return None if _is_foreign(authorization, path) else authorization

    async def _access_key(self, authorization: str, scope: HttpScope) -> AccessKey:
        """Return the access key that a header holds.

        Raises:
            AccessError: There is no such key, or it was revoked.
            BusyError: Too many guesses come from the address.
        """
        kind, _, secret = authorization.partition(" ")
        secret = secret.strip()

        # Guesses wait for each other, and for no valid key.
        claimed_id = secret[: len(KEY_START) + KEY_ID].removeprefix(KEY_START)
        is_valid_id = claimed_id in self._valid_ids
        database.current_key_id.set(claimed_id if is_valid_id else _address(scope))

        key = None
        if kind.lower() == "bearer":
            key = await self._look_up(secret)
        if key is None:
            # Count guesses by address, so that they use up no key's rate.
            await self._count(_address(scope))
            raise errors.AccessError(
                "This access key does not exist or was revoked; send another one."
            )
        self._valid_ids.add(key.id)
        return key

    async def _look_up(self, secret: str) -> AccessKey | None:
        """Return the key of a secret.

        Requests that come while a secret is looked up share the next look, so that no request gets
        a result that is older than itself.
        """
        if secret not in self._next_looks:
            looking = asyncio.create_task(self._look(secret))
            looking.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._next_looks[secret] = looking
        return await asyncio.shield(self._next_looks[secret])

    async def _look(self, secret: str) -> AccessKey | None:
        one_at_a_time = self._look_locks.setdefault(secret, asyncio.Lock())
        async with one_at_a_time:
            del self._next_looks[secret]
            try:
                return await self._store.key_for(secret)
            finally:
                if secret not in self._next_looks:
                    del self._look_locks[secret]

    async def _count(self, client: str) -> None:
        """Count a request of a key, or of an address without one; each process does so alone.

        Raises:
            BusyError: The rate is exceeded.
        """
        for rate in self._rates:
            is_within = await self._limiter.hit(rate, client)
            if is_within:
                continue
            window = await self._limiter.get_window_stats(rate, client)
            until_reset = max(1.0, window.reset_time - time.time())
            sentence = f"You exceeded the limit of {rate}; wait, and ask less often."
            raise self._busy(client, sentence, shortest=min(until_reset, rate.get_expiry()))

    def _busy(
        self, client: str, sentence: str, *, shortest: float = SOON, is_own: bool = True
    ) -> errors.BusyError:
        """Return the error for a refused request, with a time to return that others do not have.

        Args:
            client: The key or the address that it counts for.
            sentence: Says what there is too much of.
            shortest: The seconds after which the first refused client may return.
            is_own: Whether this client asks too much, and not all of them together.
        """
        wait = self._return_times.wait(client, shortest)
        return errors.BusyError(sentence, retry_after=wait, own=is_own)


def _client_of(access_key: AccessKey, scope: HttpScope) -> str:
    """Return for whom a request counts: its key, or its address if it has none."""
    return f"key {access_key.id}" if access_key.id else _address(scope)


def _decrement(counts: Counter[str], client: str) -> None:
    """Count one less of a client; keys and addresses come and go, so that zeros are removed."""
    counts[client] -= 1
    if not counts[client]:
        del counts[client]


def _is_foreign(authorization: str, path: str) -> bool:
    """Return whether a token for a path that others have designed cannot be one of our keys.

    Clients of OpenAI and of rerankers always send a token.
    """
    token = authorization.partition(" ")[2].strip()
    return path.startswith((OPENAI, *RERANK)) and not token.startswith(KEY_START)


def _require_one_meaning(headers: Headers) -> None:
    """Refuse headers that a proxy before us might read in another way.

    Raises:
        HTTPException: They have two meanings.
    """
    if {"content-length", "transfer-encoding"} <= set(headers.keys()):
        # It might believe the other length, and take the rest for somebody else's request.
        sentence = "Send either Content-Length or Transfer-Encoding, not both."
        raise HTTPException(400, {"detail": sentence}, CLOSES)
    for name in _ONCE:
        if len(headers.getlist(name)) > 1:
            raise HTTPException(400, {"detail": f"Send the header {name} once."}, CLOSES)


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
    """Refuse requests from web pages, except our own and the origins in ``cors_origins``.

    Raises:
        NotAllowedError: The page is not allowed.
    """
    origin = headers.get("origin")
    if origin is None:
        return
    if "*" in allowed or origin in allowed:
        return
    host_of_page = origin.partition("://")[2].lower()
    if host_of_page != headers.get("host", "").lower():
        raise errors.NotAllowedError(
            "The service does not answer web pages of other origins; add this one to cors_origins, "
            "or use a program."
        )


def _address(scope: HttpScope) -> str:
    """Return the name by which we count requests from the address of a connection."""
    client = scope.get("client")
    host = client[0] if client else ""
    return f"address {host}"
