"""Finds the model that re-ranks, or is probed, in a run."""

from __future__ import annotations

from typing import cast

from langchain_core.language_models import BaseChatModel

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.opening import open_language_model, open_model
from fairqr.agents.ranking.rankers import ItemRanker, RankerName, open_ranker
from fairqr.agents.refiner import Refiner
from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.graph.search.context import Context
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine

ASKED: tuple[RankerName, ...] = ("listwise", "pairwise")
"""The rankers that ask a language model with a prompt; the others have their own model."""


Model = ChatModel | Refiner | LanguageModel
"""A model that refines queries, answers or ranks."""

GivenModel = Model | BaseChatModel | str
"""A model as callers give it: one of ours, a chat model of LangChain's, or a name."""


class Rankers:
    """The rankers for the runs of one or more graphs, which share the weights.

    Args:
        ranker: A language model or its name; or a ranker, which is used whatever the context names.
            Defaults to the model.
        model: The model of the graph.
        prompts: The library of prompts.
    """

    def __init__(
        self,
        ranker: LanguageModel | ItemRanker | BaseChatModel | str | None,
        model: object,
        prompts: PromptLibrary,
    ) -> None:
        self._given = ChatModel.of(ranker) if isinstance(ranker, BaseChatModel) else ranker
        if not isinstance(ranker, BaseChatModel | str | None):
            require_method("ranker", ranker, "rank", "weigh")
        self._model = model
        self._prompts = prompts
        # Weights are loaded once for all runs.
        self._neural: dict[str, ItemRanker] = {}

    @classmethod
    def of(cls, given: GivenRanker | None, model: Model | None, prompts: PromptLibrary) -> Rankers:
        """Return a given ``Rankers`` as it is, or make one."""
        return given if isinstance(given, Rankers) else cls(given, model, prompts)

    def language_model(self) -> LanguageModel | None:
        """Return the language model that is asked to rank, if there is one.

        Raises:
            ModelUnavailableError: There is no model of that name.
        """
        if isinstance(self._given, str):
            self._given = open_language_model(self._given)
        for each in (self._given, self._model):
            if is_language_model(each):
                return cast("LanguageModel", each)
        return None

    def ranker_for(self, context: Context) -> ItemRanker | None:
        """Return the ranker for a run with this context, or None if nothing re-ranks.

        Raises:
            ModelUnavailableError: The ranker needs a language model, but none is given.
            PromptError: The prompt does not exist.
            InputError: An option is out of range.
        """
        name = context.strategy.ranker
        if name is None:
            return None
        if hasattr(self._given, "rank"):
            return cast("ItemRanker", self._given)
        options = context.ranking.options(context.prompts)
        if name in ASKED:
            return open_ranker(name, self.language_model(), self._prompts, options)
        key = f"{name} {context.ranking.model_dump_json()}"
        if key not in self._neural:
            self._neural[key] = open_ranker(name, None, self._prompts, options)
        return self._neural[key]


GivenRanker = Rankers | LanguageModel | ItemRanker | BaseChatModel | str
"""A ranker as callers give it."""


def is_language_model(model: object) -> bool:
    """Return whether something is a language model that can be asked to rank."""
    return hasattr(model, "weigh") and hasattr(model, "write")


def require_refines(model: Model) -> None:
    """Check that a model can refine queries.

    Raises:
        ModelUnavailableError: It can only rank.
    """
    if not isinstance(model, ChatModel) and not hasattr(model, "refine"):
        raise ModelUnavailableError(
            f"The model {model.name} can rank, but not refine queries; choose a method that does "
            "not refine, such as listwise, or another model."
        )


def model_of(given: GivenModel | None, engine: SearchEngine) -> Model | None:
    """Return a model from its name, or from a chat model of LangChain.

    Raises:
        ModelUnavailableError: No model has this name.
        InputError: The object is not a model.
    """
    if isinstance(given, str):
        return open_model(given, engine=engine)
    if isinstance(given, BaseChatModel):
        return ChatModel.of(given)
    if given is not None:
        require_method("model", given, "refine", "weigh")
    return given


def require_method(role: str, given: object, *methods: str) -> None:
    """Check that an object has one of the methods that its role needs.

    Args:
        role: The name of the argument.
        given: The object, which is neither a name nor a chat model of LangChain.
        methods: The methods; the object needs one of them.

    Raises:
        InputError: The object has none of them. LangChain's wrappers of chat models have none, such
            as ``model.with_retry()``.
    """
    if not any(hasattr(given, method) for method in methods):
        raise InputError(
            f"The {role} must be a name, a chat model of LangChain itself, or an object with a "
            f"method '{methods[0]}', not {type(given).__name__}."
        )
