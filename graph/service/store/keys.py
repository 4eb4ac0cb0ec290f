"""Access keys: creating, listing, revoking and checking them."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Sequence

import sqlalchemy as sa

from fairqr.base.errors import InputError, one_line
from fairqr.graph.service.records import KEY_START, LIVE, SCOPES, AccessKey, Scope
from fairqr.graph.service.store.database import Database
from fairqr.graph.service.store.tables import KEYS, RUNS

DEFAULTSCOPES: tuple[Scope, ...] = ("read", "run")

_SECRET = re.compile(KEY_START + r"([0-9a-f]{12})_[A-Za-z0-9_-]{43}", re.ASCII)
_NAME = 100  # characters


class Keys:
    """Access keys. We only keep their SHA-256."""

    database: Database

    async def create_key(
        self, name: str, scopes: Sequence[Scope] = DEFAULTSCOPES
    ) -> tuple[AccessKey, str]:
        """Make an access key.

        Args:
            name: Who or what it is for; one line of at most 100 characters.
            scopes: What it may do. ``admin`` includes ``run``, and ``run`` includes ``read``; the
                returned key names them all.

        Returns:
            The key, and its secret, which nobody can read again.

        Raises:
            InputError: The name cannot be shown, or there is no such scope.
            StoreUnavailableError: The database cannot be used.
        """
        if not (name.strip() and len(name) <= _NAME and name.isprintable()):
            raise InputError(f"The name of a key is one line of 1 to {_NAME} characters.")
        for scope in scopes:
            if scope not in SCOPES:
                raise InputError(
                    f"There is no scope '{one_line(scope, 40)}'; choose from {', '.join(SCOPES)}."
                )
        if not scopes:
            raise InputError(f"A key needs a scope; choose from {', '.join(SCOPES)}.")
        highest = max(SCOPES.index(scope) for scope in scopes)
        id_ = secrets.token_hex(6)
        secret = f"{KEY_START}{id_}_{secrets.token_urlsafe(32)}"
        async with self.database.write() as connection:
            made = await connection.execute(
                KEYS.insert()
                .values(
                    id=id_,
                    name=name.strip(),
                    scopes=SCOPES[: highest + 1],
                    created=self.database.now(),
                    sha256=_sha256(secret),
                )
                .returning(*KEYS.c)
            )
            return AccessKey(**made.mappings().one()), secret

    async def keys(self) -> list[AccessKey]:
        """Return all access keys, the oldest first, including revoked ones.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """
        async with self.database.read() as connection:
            found = await connection.execute(sa.select(KEYS).order_by(KEYS.c.created, KEYS.c.id))
            return [AccessKey(**row) for row in found.mappings()]

    async def revoke_key(self, id: str) -> AccessKey:
        """Revoke an access key for good, and cancel its runs.

        A key that was revoked before stays unchanged.

        Args:
            id: The id of the key, with or without ``fqr_``.

        Raises:
            InputError: The key does not exist.
            StoreUnavailableError: The database cannot be used.
        """
        id_ = id.removeprefix(KEY_START)
        found = None
        if re.fullmatch(r"[0-9a-f]{12}", id_, re.ASCII):  # PostgreSQL refuses some other texts
            async with self.database.write() as connection:
                revoked = KEYS.update().where(KEYS.c.id == id_, KEYS.c.revoked.is_(None))
                await connection.execute(revoked.values(revoked=self.database.now()))
                # Whoever does the runs ends them.
                live = RUNS.update().where(RUNS.c.key_id == id_, RUNS.c.status.in_(LIVE))
                await connection.execute(live.values(cancel=True))
                query = sa.select(KEYS).where(KEYS.c.id == id_)
                found = (await connection.execute(query)).mappings().first()
        if found is None:
            raise InputError(
                f"There is no access key '{one_line(id_, 12)}'; see 'fairqr keys list'."
            )
        return AccessKey(**found)

    async def revoked(self, ids: Collection[str]) -> set[str]:
        """Return which of these keys are revoked.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """
        query = sa.select(KEYS.c.id).where(KEYS.c.id.in_(ids), KEYS.c.revoked.is_not(None))
        async with self.database.read() as connection:
            return set(await connection.scalars(query))

    async def key_for(self, secret: str) -> AccessKey | None:
        """Return the access key of a secret, or None if it does not exist or was revoked.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """
        form = _SECRET.fullmatch(secret)
        if form is None:
            return None

        query = sa.select(KEYS).where(KEYS.c.id == form[1])
        async with self.database.read() as connection:
            found = (await connection.execute(query)).mappings().first()
        # An unknown id takes as long as a wrong secret.
        expected = found["sha256"] if found else "0" * 64
        same = hmac.compare_digest(_sha256(secret), expected)
        if not same or found is None or found["revoked"] is not None:
            return None
        return AccessKey(**found)


def _sha256(secret: str) -> str:
    # The secret has 256 random bits, so a slow hash would add nothing.
    return hashlib.sha256(secret.encode()).hexdigest()
