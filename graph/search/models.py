"""The model that refines queries, as callers may give it."""

from __future__ import annotations

from langchain_core.language_models import BaseChatModel

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.opening import open_model
from fairqr.agents.models.recorded import RecordedModel
from fairqr.agents.refiners.refiner import Refiner
from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.retrieval.engines.engine import SearchEngine

Model = ChatModel | Refiner | LanguageModel
"""A model that refines queries, answers or ranks."""

GivenModel = Model | BaseChatModel | str
"""A model as callers give it: one of ours, a chat model of LangChain's, or a name."""


def require_refines(model: Model) -> None:
    """Check that a model can refine queries.

    Raises:
        ModelUnavailableError: It can only rank.
    """
    if not isinstance(model, ChatModel | RecordedModel) and not hasattr(model, "refine"):
        raise ModelUnavailableError(
            f"The model {model.name} can rank, but not refine queries; choose a method that does "
            "not refine, such as listwise, or another model."
        )


def model_of(model: GivenModel | None, engine: SearchEngine) -> Model | None:
    """Return a model from its name, or from a chat model of LangChain.

    Raises:
        ModelUnavailableError: No model has this name.
        InputError: The object is not a model.
    """
    if isinstance(model, str):
        return open_model(model, engine=engine)
    if isinstance(model, BaseChatModel):
        return ChatModel.of(model)
    if model is not None:
        require_method("model", model, "refine", "choice_probabilities")
    return model


def require_method(role: str, component: object, *methods: str) -> None:
    """Check that an object has one of the methods that its role needs.

    Args:
        role: The name of the argument.
        component: The object, which is neither a name nor a chat model of LangChain.
        methods: The methods; the object needs one of them.

    Raises:
        InputError: The object has none of them. LangChain's wrappers of chat models have none, such
            as ``model.with_retry()``.
    """
    if not any(hasattr(component, method) for method in methods):
        raise InputError(
            f"The {role} must be a name, a chat model of LangChain itself, or an object with a "
            f"method '{methods[0]}', not {type(component).__name__}."
        )
