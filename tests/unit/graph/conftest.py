"""What tests of the graphs share."""

from __future__ import annotations

from tests.unit.graph.corpora import corpus, engine

__all__ = ["corpus", "engine"]
