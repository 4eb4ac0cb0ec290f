"""What a search graph is built from, and what its nodes get beside the state and the context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.recorded import RecordedModel
from fairqr.agents.refiners.language_model import LLMRefiner
from fairqr.agents.refiners.refiner import Refiner
from fairqr.base.errors import InputError
from fairqr.graph.search import rankers
from fairqr.graph.search.context import Context
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.relevance import EvidenceWeights


@dataclass(frozen=True, kw_only=True)
class SearchParts:
    """The parts of a search graph.

    Attributes:
        engine: The search engine.
        model: Refines queries; optional.
        rankers: Return the ranker for a run.
        default: The context that the graph was built with, if any. It applies to runs that bring
            none, and inside a graph of others with another context.
    """

    engine: SearchEngine
    model: rankers.Model | None
    rankers: rankers.Rankers
    default: Context | None

    def context(self, given: object) -> Context:
        """Return the context of a run, from what the caller gave.

        Raises:
            InputError: There is none.
        """
        if isinstance(given, Context):
            return given
        if self.default is None:
            raise InputError("The run needs a context; give the graph a Context.")
        return self.default

    def weights(self, context: Context) -> EvidenceWeights:
        """Return how much the words of the model count in a run with this context."""
        if context.word_weights is not None:
            return context.word_weights
        return EvidenceWeights(topic=1, queries=0, passage=0, group=1)

    def refiner(self, context: Context) -> Refiner | None:
        """Return the refiner for a run with this context, or None.

        Raises:
            ModelUnavailableError: The model can only rank.
        """
        if isinstance(self.model, ChatModel | RecordedModel):
            prompts = self.rankers.prompts
            return LLMRefiner(
                self.model,
                prompts.get("refine", context.prompts.get("refine")),
                prompts.get("topic", context.prompts.get("topic")),
            )
        if self.model is None:
            return None
        if not context.rounds and not hasattr(self.model, "refine"):
            return None
        rankers.require_refines(self.model)
        return cast("Refiner", self.model)
