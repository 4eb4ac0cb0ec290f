"""The database of runs, their events, the replies of models, and access keys.

SQLite where nothing is said, PostgreSQL by a URL; the statements are the same, and what differs
stands in :mod:`fairqr.graph.service.store.flavours`.
"""

from __future__ import annotations

from fairqr.graph.service.store.queue import Claim, Renewal
from fairqr.graph.service.store.store import Store

__all__ = ["Claim", "Renewal", "Store"]
