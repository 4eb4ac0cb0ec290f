"""Opens models and generators by their names."""

from __future__ import annotations

from typing import Any

from fairqr.agents.generators import INPUT_TOKENS, Generator, ModelGenerator
from fairqr.agents.models.cache import ReplyCache, kept_in
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.in_process import (
    SEQ2SEQ_INPUT_TOKENS,
    CausalModel,
    Seq2SeqModel,
    read_options,
)
from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.provider import require_provider
from fairqr.agents.models.recorded import RecordedModel
from fairqr.agents.models.replies import RECORDED
from fairqr.agents.refiners.feedback import FeedbackRefiner
from fairqr.agents.refiners.refiner import Refiner
from fairqr.base.errors import ModelUnavailableError
from fairqr.base.settings import default_model
from fairqr.retrieval.engines.engine import SearchEngine

CAUSAL = "causal"
"""The prefix in the names of decoder-only models of transformers."""

SEQ2SEQ = "seq2seq"
"""The prefix in the names of encoder-decoder models of transformers."""


def open_model(
    name: str | None = None,
    *,
    engine: SearchEngine | None = None,
    cache: bool | ReplyCache = True,
    **options: Any,
) -> ChatModel | CausalModel | RecordedModel | Refiner:
    """Return the model or refiner with this name.

    Args:
        name: As :func:`open_language_model` takes it; or ``feedback`` for relevance feedback
            without a language model, which needs the engine. Defaults to the configured model.
        engine: The engine for ``feedback``.
        cache: Whether to keep replies on disk so that nothing is asked twice, or the cache to use.
        options: More for :class:`ChatModel`.

    Raises:
        ModelUnavailableError: The name is malformed, or ``feedback`` has no engine.
    """
    name = name or default_model()
    if name != FeedbackRefiner.name:
        return open_language_model(name, cache=cache, **options)
    if engine is None:
        raise ModelUnavailableError("The refiner 'feedback' needs an engine to learn from.")
    return FeedbackRefiner(engine)


def open_language_model(
    name: str | None = None, *, cache: bool | ReplyCache = True, **options: Any
) -> ChatModel | CausalModel | RecordedModel:
    """Return a language model.

    Args:
        name: A chat model as :class:`ChatModel` takes it; or ``causal:`` and a decoder-only model
            of transformers, which ranks and answers: a hub id, a folder, a folder of an adapter, a
            GGUF file, or the name of embedded weights; or ``recorded:`` and a file of replies,
            which only refines. Defaults to the configured model.
        cache: Whether to keep replies on disk so that nothing is asked twice, or the cache to use.
        options: More for :class:`ChatModel`; a model in this process ignores them.

    Raises:
        ModelUnavailableError: The name is malformed, or the file of replies cannot be used.
    """
    name = name or default_model()
    file = _model_after(RECORDED, name, "recorded:notables")
    if file is not None:
        return RecordedModel(file)
    weights = _model_after(CAUSAL, name, "causal:smollm2-135m")
    if weights is not None:
        return CausalModel(weights, cache=kept_in(cache))
    return ChatModel(name, cache=kept_in(cache), **options)


def require_model(name: str) -> None:
    """Check the name of a model, without asking or loading one.

    Args:
        name: As :func:`open_model` or :func:`open_generator` takes it.

    Raises:
        ModelUnavailableError: It is malformed, there is no such provider, its package is not
            installed, or the file of replies cannot be used.
    """
    if name == FeedbackRefiner.name:
        return
    weights = _model_after(SEQ2SEQ, name, "seq2seq:google/flan-t5-small")
    if weights is not None:
        read_options(weights)
        return
    if isinstance(open_language_model(name, cache=False), ChatModel):
        require_provider(name)


def open_generator(
    name: str | None = None,
    *,
    cache: bool | ReplyCache = True,
    input_tokens: int | None = None,
    **options: Any,
) -> Generator:
    """Return a generator that answers questions from documents.

    Args:
        name: A chat model as :class:`ChatModel` takes it, such as ``openai:gpt-4o``; ``seq2seq:``
            and the hub id or folder of an encoder-decoder model, such as
            ``seq2seq:google/flan-t5-small``; or ``causal:`` and a decoder-only model, as
            :func:`open_language_model` takes it. Defaults to the configured model.
        cache: Whether to keep replies on disk so that nothing is asked twice, or the cache to use.
        input_tokens: How many tokens a prompt may have; the default depends on the kind of model.
        options: More for :class:`ChatModel`; models in this process ignore them.

    Raises:
        ModelUnavailableError: The name is malformed, or its model cannot write texts.
    """
    name = name or default_model()
    causal_weights = _model_after(CAUSAL, name, "causal:smollm2-135m")
    seq2seq_weights = _model_after(SEQ2SEQ, name, "seq2seq:google/flan-t5-small")
    default_tokens = INPUT_TOKENS
    model: LanguageModel
    if causal_weights is not None:
        model = CausalModel(causal_weights, cache=kept_in(cache))
    elif seq2seq_weights is not None:
        model = Seq2SeqModel(seq2seq_weights, cache=kept_in(cache))
        default_tokens = SEQ2SEQ_INPUT_TOKENS
    else:
        model = ChatModel(name, cache=kept_in(cache), **options)
    return ModelGenerator(model, input_tokens=input_tokens or default_tokens)


def _model_after(kind: str, name: str, example: str) -> str | None:
    """Return the model after a prefix, or None if the name has another one or none.

    Raises:
        ModelUnavailableError: There is no model after it.
    """
    prefix, _, model = name.partition(":")
    if prefix == kind and not model:
        raise ModelUnavailableError(f"The name '{name}' lacks a model; write it like {example}.")
    return model if prefix == kind else None
