"""The database of runs, their events, the replies of models, and access keys.

SQLite by default, or PostgreSQL by URL. The statements are the same;
:mod:`fairqr.graph.service.store.flavours` has the differences.
"""

from __future__ import annotations

from fairqr.graph.service.store.queue import Renewal
from fairqr.graph.service.store.store import Store

__all__ = ["Renewal", "Store"]
