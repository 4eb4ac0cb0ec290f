"""What a probe graph is built from, and what its nodes get beside the state and the context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairqr.graph.probe.context import ProbeContext, ProbeSettings
from fairqr.graph.running import context_of
from fairqr.graph.search.rankers import Rankers
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.protected import ProtectedGroup


@dataclass(frozen=True, kw_only=True)
class ProbeParts:
    """The parts of a probe graph.

    Attributes:
        engine: The search engine.
        rankers: Know the language model that is probed, and the prompts.
        default: The context of runs that bring none, if any.
    """

    engine: SearchEngine
    rankers: Rankers
    default: ProbeContext | None

    def context(self, given: object) -> ProbeContext:
        """Return the context of a run, from what the caller gave.

        Raises:
            InputError: There is none, or it is that of another graph.
        """
        return context_of(ProbeContext, given, self.default)

    def ranker(self, kind: str, context: ProbeContext) -> Any:
        """Return the ranker of lists, or the one whose judge compares pairs."""
        return self.rankers.open(kind, context.probe, context)

    def sides(self, settings: ProbeSettings) -> ProtectedGroup:
        """Return the protected groups, the others, and the words for both.

        Raises:
            InputError: There is no such attribute or group.
        """
        attribute = self.engine.schema.attribute(settings.attribute)
        return ProtectedGroup.parse(attribute, settings.protected, settings.words)
