"""The database of runs, their events, the replies of models, and access keys."""

from __future__ import annotations

from fairqr.graph.service.store.attempts import Attempt as Attempt
from fairqr.graph.service.store.store import Store as Store
