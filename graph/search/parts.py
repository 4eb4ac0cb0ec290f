"""What a search graph is built from, and what its nodes get beside the state and the context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.recorded import RecordedModel
from fairqr.agents.profiles.finding import NO_WORDS, UNMEASURED, Profiles, Trust, profiled_name
from fairqr.agents.refiners.language_model import LLMRefiner
from fairqr.agents.refiners.refiner import Refiner
from fairqr.base.kept import Kept
from fairqr.graph.running import context_of
from fairqr.graph.search.context import Context
from fairqr.graph.search.models import Model, require_refines
from fairqr.graph.search.pages import KEPT_LISTS, PAGED_SECONDS, FoundList
from fairqr.graph.search.rankers import Rankers
from fairqr.retrieval.engines.engine import SearchEngine


@dataclass(frozen=True, kw_only=True)
class SearchParts:
    """The parts of a search graph.

    Attributes:
        engine: The search engine.
        model: Refines queries; optional.
        rankers: Return the ranker for a run.
        default: The context that the graph was built with, if any. It applies to runs that bring
            none, and inside a graph of others with another context.
        profiles: What was measured of models.
        kept: What recent searches found, from which later pages are made.
    """

    engine: SearchEngine
    model: Model | None
    rankers: Rankers
    default: Context | None
    profiles: Profiles = field(default_factory=Profiles)
    kept: Kept[tuple[str, str], FoundList] = field(
        default_factory=lambda: Kept(KEPT_LISTS, PAGED_SECONDS)
    )

    def context(self, given: object) -> Context:
        """Return the context of a run, from what the caller gave.

        Raises:
            InputError: There is none.
        """
        return context_of(Context, given, self.default)

    def trust(self, context: Context) -> Trust:
        """Return how much the words of the model count, and what they are expected to bring.

        They are as measured for the model, its prompts and the index, unless the context sets the
        weights. A model whose words do not count here is never asked with ``auto``. If it is asked
        nevertheless, its words count as little as an unmeasured model's.
        """
        if self.model is None or not context.rounds:
            return NO_WORDS
        corpora = [self.engine.name, fingerprint_of(self.engine)]
        trust = self.profiles.trust_in(profiled_name(self.model), self.prompts(context), corpora)
        if context.word_weights is not None:
            trust = replace(trust, weights=context.word_weights, are_given=True)
        if not trust.weights.any():
            trust = replace(trust, share=0.0)
        if trust.are_given:
            return trust
        if context.strategy.ask == "always" and not trust.weights.any():
            return replace(trust, weights=UNMEASURED.weights, is_in_vain=True)
        return trust

    def prompts(self, context: Context) -> Mapping[str, str]:
        """Return the versions of the prompts that the model is asked with, by id.

        They are those that suit the model, unless the context names others. The published loop
        keeps its own prompt, which asks for words of the topic and of the group at once.
        """
        if not isinstance(self.model, ChatModel | RecordedModel):
            return {}
        suitable = {}
        if context.words_are_evidence:
            suitable = self.profiles.prompts_for(profiled_name(self.model))
        versions = {}
        for id_ in ("refine", "topic"):
            version = context.prompts.get(id_, suitable.get(id_))
            versions[id_] = self.rankers.prompts.get(id_, version).version
        return versions

    def refiner(self, context: Context) -> Refiner | None:
        """Return the refiner for a run with this context, or None.

        Raises:
            ModelUnavailableError: The model can only rank.
        """
        if isinstance(self.model, ChatModel | RecordedModel):
            versions = self.prompts(context)
            prompts = self.rankers.prompts
            group_prompt = prompts.get("refine", versions["refine"])
            topic_prompt = None
            if context.words_are_evidence:
                topic_prompt = prompts.get("topic", versions["topic"])
            return LLMRefiner(self.model, group_prompt, topic_prompt)
        if self.model is None:
            return None
        if not context.rounds and not hasattr(self.model, "refine"):
            return None
        require_refines(self.model)
        return cast("Refiner", self.model)


def fingerprint_of(engine: SearchEngine) -> str:
    """Return the hash of the documents of an index of ours; empty for another engine."""
    lexical = getattr(engine, "lexical", engine)
    manifest = getattr(lexical, "manifest", None)
    return getattr(manifest, "fingerprint", "")
