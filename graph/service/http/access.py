"""The guard: keys, scopes, rates, the checks without keys, and the bodies of requests."""

from __future__ import annotations

import asyncio
import codecs
import ipaddress
import json
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from fastapi import HTTPException
from limits import parse_many
from limits.aio import storage, strategies
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as HttpScope

from fairqr.base import errors
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.http.answers import CLOSES, OPENAI, answer_error
from fairqr.graph.service.http.returning import ReturnTimes
from fairqr.graph.service.records import KEY_ID, KEY_START, NOBODY, SCOPES, AccessKey, Scope
from fairqr.graph.service.slots import most_of
from fairqr.graph.service.store import Store, database

# Paths that need no key; nor do the files of the page.
OPEN = ("/", "/healthz", "/readyz", "/openapi.json")

MCP_PATH = "/mcp"

_READS = ("GET", "HEAD", "OPTIONS")
_ONCE = ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Origin")
_ONLY_READS = {"Allow": "GET, HEAD", **CLOSES}

# The most values in a body, if audits need no more: each takes memory, and time to check.
MOST_VALUES = 5_000

# The paths of re-ranking, whose clients always send a token; a document may have as many values.
RERANK = ("/v1/rerank", "/v2/rerank", "/rerank")
OF_A_DOCUMENT = 25

OF_A_QUERY = 4  # the most values that a query of an audit has: an object, with its weight

# So many bytes beyond the limit are read and thrown away: who sends all before it reads an answer
# would see a broken connection, and not what is wrong with its request.
_DISCARDED = 2**25

# The seconds after which the first of those who found no room may come again.
SOON = 2.0

# If a body takes more seconds, its key is checked again.
A_MOMENT = 0.2

_HOST = re.compile(r"(?:(?P<six>\[[0-9a-fA-F:.]+\])|(?P<name>[A-Za-z0-9.-]+))(?::\d{1,5})?")


# Who asks if no key is required.
ANYBODY = AccessKey(id=NOBODY, name="", scopes=SCOPES, created=0, sha256="")


def access_key_of(scope: HttpScope) -> AccessKey:
    """Return whose key a request has, as the guard found it."""
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
    return "read" if method in _READS else "run"


class Guard:
    """Refuses requests without the right key, those above the limits, and wrong bodies.

    Args:
        app: The guarded application.
        settings: The settings of the service.
        store: The store with the keys.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings, store: Store) -> None:
        self._app, self._settings, self._store = app, settings, store
        self._needs_keys = needs_keys(settings)
        self._rates = parse_many(settings.traffic.rate) if settings.traffic.rate else []
        self._limiter = strategies.SlidingWindowCounterRateLimiter(storage.MemoryStorage())
        self._known: set[str] = set()
        """The ids of the keys that were ever right."""
        self._looking: dict[str, asyncio.Lock] = {}
        self._next_looks: dict[str, asyncio.Task[AccessKey | None]] = {}
        self._return_times = ReturnTimes()
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
        messages = list[Message]()

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        is_probe = scope["path"] == "/healthz"
        wanted = needed(scope["method"], scope["path"])
        shares = dict[str, int]()
        has_room = is_probe
        try:
            if not is_probe:
                self._require_room()
            has_room = True
            access_key = await self._admit(scope, wanted)
            scope.setdefault("state", {})["access_key"] = access_key
            database.current_key_id.set(access_key.id)
            if scope["method"] == "POST":
                has_room = False
                started = time.monotonic()
                body = await self._body(request, access_key)
                if access_key.id and time.monotonic() - started > A_MOMENT:
                    # It may have been revoked meanwhile.
                    await self._access_key(request.headers["authorization"], scope)
                messages.append({"type": "http.request", "body": body, "more_body": False})
                has_room = True
            if not is_probe:
                shares = self._shares_of(scope, access_key, is_open=wanted is None)
                self._require_room(shares)
        except ClientDisconnect:
            return None
        except (errors.FairqrError, HTTPException) as error:
            response = await answer_error(request, error)
            if isinstance(error, errors.BusyError) and not has_room:
                # There is none for those who go on sending.
                response.headers["connection"] = "close"
            return await response(scope, receive, send)
        with self._counted(shares.keys()):
            return await self._app(scope, replay, send)

    def _shares_of(
        self, scope: HttpScope, access_key: AccessKey, *, is_open: bool
    ) -> dict[str, int]:
        """Return as whose a request counts, and how many of each may be under way.

        Nobody has no share of its own, but for open paths.
        """
        traffic = self._settings.traffic
        if is_open:
            return {_address(scope): traffic.arriving}
        if access_key.id == NOBODY:
            return {}
        shares = {f"key {access_key.id}": most_of(traffic.requests, traffic.share)}
        if scope["method"] == "POST":
            # Each is a run at most, and may end a moment after its run; more are refused anyway.
            # Tools would refuse them after much work, and with a status that no client waits for.
            most = traffic.live if scope["path"] == MCP_PATH else 2 * traffic.live
            shares[f"POST of key {access_key.id}"] = most
        return shares

    @contextmanager
    def _counted(self, shares: Collection[str]) -> Iterator[None]:
        """Count a request as under way."""
        self._under_way += 1
        self._under_way_by.update(shares)
        try:
            yield
        finally:
            self._under_way -= 1
            for who in shares:
                self._under_way_by[who] -= 1
                if not self._under_way_by[who]:
                    del self._under_way_by[who]

    def _require_room(self, shares: Mapping[str, int] | None = None) -> None:
        """Refuse a request where there are too many, or too many of its key or its address.

        Raises:
            BusyError: There are.
        """
        most = self._settings.traffic.requests
        if self._under_way >= most:
            many = f"The service has {most:,} requests under way; try again later."
            raise self._busy("everybody", many, own=False)
        for who, own in (shares or {}).items():
            if self._under_way_by[who] >= own:
                whose = "Your address" if who.startswith("address") else "Your key"
                many = f"{whose} has {own:,} requests under way, streams too; let some end first."
                raise self._busy(who, many)

    async def _body(self, request: Request, access_key: AccessKey) -> bytes:
        """Return the body of a request. Until it has arrived, it only counts for whose it is.

        Raises:
            BusyError: Too many of the key, or from the address without one, are on their way.
        """
        who = f"key {access_key.id}" if access_key.id else _address(request.scope)
        most = self._settings.traffic.arriving
        if self._arriving[who] >= most:
            whose = "of your key" if access_key.id else "from your address"
            many = f"{most:,} bodies {whose} are on their way; send them whole."
            raise self._busy(who, many)
        self._arriving[who] += 1
        try:
            return await read_body(request, self._settings)
        finally:
            self._arriving[who] -= 1
            if not self._arriving[who]:
                del self._arriving[who]

    async def _admit(self, scope: HttpScope, wanted: Scope | None) -> AccessKey:
        """Return the access key of a request that may be served.

        Args:
            scope: The connection.
            wanted: The scope that the request needs; None for an open path.

        Raises:
            FairqrError: It may not.
        """
        headers = Headers(scope=scope)
        _require_one_meaning(headers)
        pages = self._settings.cors_origins
        if scope["path"] == MCP_PATH:  # even with a key, as MCP requires
            _check_origin(headers, pages)
        given = headers.get("authorization")
        if wanted is None or (given and not self._needs_keys and _is_foreign(given, scope["path"])):
            given = None
        if given is None and not self._needs_keys:
            _check_host(headers)
            _check_origin(headers, pages)
        if wanted is None:
            if scope["method"] not in _READS:  # before its body is read
                raise HTTPException(
                    405, {"detail": "This path can only be read; send GET."}, _ONLY_READS
                )
            return ANYBODY
        if given is not None:
            access_key = await self._access_key(given, scope)
        elif self._needs_keys:
            raise errors.AccessError(
                "An access key is needed; send it as 'Authorization: Bearer fqr_…'."
            )
        else:
            access_key = ANYBODY
        await self._count(f"key {access_key.id}" if access_key.id else _address(scope))
        if wanted not in access_key.scopes:  # which name those, too, that the highest includes
            own = ", ".join(access_key.scopes)
            raise errors.ScopeError(
                f"This needs an access key with the scope '{wanted}'; yours has {own}."
            )
        return access_key

    async def _access_key(self, given: str, scope: HttpScope) -> AccessKey:
        kind, _, secret = given.partition(" ")
        # Guesses wait for each other, and for no key that is known.
        claimed = secret.strip()[: len(KEY_START) + KEY_ID].removeprefix(KEY_START)
        database.current_key_id.set(claimed if claimed in self._known else _address(scope))
        key = await self._look_up(secret.strip()) if kind.lower() == "bearer" else None
        if key is not None:
            self._known.add(key.id)
        else:
            # Count guesses by address, so that they use up no key's rate.
            await self._count(_address(scope))
            raise errors.AccessError(
                "This access key does not exist or was revoked; send another one."
            )
        return key

    async def _look_up(self, secret: str) -> AccessKey | None:
        """Return the key of a secret.

        Requests that come while it is looked up share the next look: none is older than a request.
        """
        if secret not in self._next_looks:
            looking = asyncio.create_task(self._look(secret))
            looking.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._next_looks[secret] = looking
        return await asyncio.shield(self._next_looks[secret])

    async def _look(self, secret: str) -> AccessKey | None:
        one_at_a_time = self._looking.setdefault(secret, asyncio.Lock())
        async with one_at_a_time:
            del self._next_looks[secret]
            try:
                return await self._store.key_for(secret)
            finally:
                if secret not in self._next_looks:
                    del self._looking[secret]

    async def _count(self, who: str) -> None:
        """Count a request of a key, or of an address without one; each process does on its own.

        Raises:
            BusyError: The rate is exceeded.
        """
        for rate in self._rates:
            if await self._limiter.hit(rate, who):
                continue
            window = await self._limiter.get_window_stats(rate, who)
            until_reset = min(max(1.0, window.reset_time - time.time()), rate.get_expiry())
            many = f"You exceeded the limit of {rate}; wait, and ask less often."
            raise self._busy(who, many, least=until_reset)

    def _busy(
        self, who: str, sentence: str, *, least: float = SOON, own: bool = True
    ) -> errors.BusyError:
        """Return the error for a refused request, with a time to return that others do not have.

        Args:
            who: The key or the address that it counts for.
            sentence: What there is too much of.
            least: The seconds after which the first of those refused may return.
            own: Whether it is the client that asks too much, and not all of them.
        """
        wait = self._return_times.wait(who, least)
        return errors.BusyError(sentence, retry_after=wait, own=own)


def _is_foreign(authorization: str, path: str) -> bool:
    """Return whether a request to others' paths has a token that cannot be our key.

    Clients of OpenAI and of rerankers always send a token.
    """
    token = authorization.partition(" ")[2].strip()
    return path.startswith((OPENAI, *RERANK)) and not token.startswith(KEY_START)


def _require_one_meaning(headers: Headers) -> None:
    """Refuse headers that a proxy before us might read in another way.

    Raises:
        HTTPException: They have two meanings.
    """
    if {"content-length", "transfer-encoding"} <= {*headers.keys()}:
        # It might believe the other length, and take the rest for somebody else's request.
        one = "Send either Content-Length or Transfer-Encoding, not both."
        raise HTTPException(400, {"detail": one}, CLOSES)
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


def _address(scope: HttpScope) -> str:
    return f"address {scope['client'][0] if scope.get('client') else ''}"


async def read_body(request: Request, settings: ServiceSettings) -> bytes:
    """Return the body of a request, checked before anything else happens.

    Raises:
        HTTPException: It is no JSON, too large, or too slow.
        InputError: It has too many values.
        ClientDisconnect: The client left.
    """
    most, seconds = settings.limits.body_bytes, settings.traffic.body_seconds
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                size += len(piece)
                if size <= most:
                    body += piece
                elif size > most + _DISCARDED:
                    break
    except TimeoutError:
        late = f"The body did not arrive within {seconds:g} s; send it faster."
        raise HTTPException(408, {"detail": late}, CLOSES) from None
    if size > most:
        large = f"The body has more than {most:,} bytes, the limit (body_bytes); send less."
        more = {"limit": "body_bytes", "most": most}
        raise HTTPException(413, {"detail": large, **more}, CLOSES)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Web pages of other origins can send other types without the browser's check.
        wanted = "Send JSON with the header 'Content-Type: application/json'."
        raise HTTPException(415, {"detail": wanted})
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HTTPException(415, {"detail": "Send the body as it is, without Content-Encoding."})
    limits = settings.limits
    values = max(MOST_VALUES, OF_A_QUERY * limits.audit_queries)
    if request.scope["path"] in RERANK:
        values = max(values, OF_A_DOCUMENT * limits.depth)
    # Some programs put a byte order mark in front of what they write.
    unmarked = bytes(body).removeprefix(codecs.BOM_UTF8)
    check_json(unmarked, values)
    return unmarked


def check_json(body: bytes, most: int = MOST_VALUES) -> None:
    """Check a body. We count its values before we parse it.

    Raises:
        HTTPException: It is no JSON, or holds NaN or infinity, a lone surrogate, or NUL, which
            databases refuse.
        InputError: It holds too many values, or an object that has two members of one name.
    """
    unescaped = _unescaped(body)
    values = unescaped.count(b'"') // 4  # a name and its value
    outside = b""
    if values <= most:
        outside = _outside_of_strings(unescaped)
        values = sum(map(outside.count, (b",", b"[", b"{")))
    if values > most:
        raise errors.InputError(f"The body has more than {most:,} values; send fewer.")
    wrong = "Leave the character NUL out of the body."
    try:
        text = json.dumps(from_json(body), allow_nan=False)
    except ValueError:
        wrong, text = "Send one JSON object in UTF-8.", "\\u0000"
    if "\\u0000" in text.replace("\\\\", ""):
        raise HTTPException(400, {"detail": wrong})
    # Of members with the same name, the parser has kept the last one.
    members = _outside_of_strings(_unescaped(text.encode())).count(b":")
    if members < outside.count(b":"):
        raise errors.InputError("An object in the body has a name twice; send each name once.")


def _unescaped(body: bytes) -> bytes:
    """Return JSON without what looks like the end of a string and is none."""
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


def _outside_of_strings(unescaped: bytes) -> bytes:
    """Return what is outside of the strings of JSON: every second part between quotes."""
    return b"".join(unescaped.split(b'"')[::2])
