"""What an answer graph is built from, and what its nodes get beside the state and the context."""

from __future__ import annotations

from dataclasses import dataclass

from langchain_core.language_models import BaseChatModel

from fairqr.agents.attribution.attributor import Attributor
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import Generator, ModelGenerator
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.opening import open_generator
from fairqr.agents.models.recorded import RecordedModel
from fairqr.base.errors import ModelUnavailableError
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.running import context_of
from fairqr.graph.search.models import Model, require_method
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.engines.engine import SearchEngine

PROMPT = "answer"
"""The id of the prompt that asks for answers."""

GivenGenerator = Generator | BaseChatModel | str
"""What may be given to write answers: a generator, a chat model of LangChain's, or a name."""

GivenAttributor = Attributor | BaseChatModel | str
"""What may be given to judge them: an attributor, a chat model of LangChain's, or a name."""


@dataclass(frozen=True, kw_only=True)
class AnswerParts:
    """The parts of an answer graph.

    Attributes:
        engine: The search engine.
        given_generator: Writes the answers; without one, runs fail.
        attributor: Judges which documents an answer used; None skips that.
        prompts: The library of prompts.
        default: The context of runs that bring none.
    """

    engine: SearchEngine
    given_generator: Generator | None
    attributor: Attributor | None
    prompts: PromptLibrary
    default: AnswerContext

    def context(self, given: object) -> AnswerContext:
        """Return the context of a run, from what the caller gave.

        Raises:
            InputError: It is the context of another graph.
        """
        return context_of(AnswerContext, given, self.default)

    @property
    def generator(self) -> Generator:
        """What writes the answers.

        Raises:
            ModelUnavailableError: There is none.
        """
        if self.given_generator is None:
            raise ModelUnavailableError(
                "No model is given to answer with; name a chat model, or give a generator."
            )
        return self.given_generator

    def prompt(self, context: AnswerContext) -> PromptTemplate:
        """Return the prompt that asks for answers.

        Raises:
            PromptError: There is no such prompt.
        """
        return self.prompts.get(PROMPT, context.prompts.get(PROMPT))


def generator_of(generator: GivenGenerator | None, model: Model | None) -> Generator | None:
    """Return what writes the answers: by default the model, if that can.

    Raises:
        InputError: What is given cannot write answers.
    """
    if isinstance(generator, str):
        return open_generator(generator)
    if isinstance(generator, BaseChatModel):
        return ModelGenerator(ChatModel.of(generator))
    if generator is not None:
        require_method("generator", generator, "generate")
        return generator
    if isinstance(model, ChatModel | RecordedModel):
        return ModelGenerator(model)  # one that only refines says so when it is started
    return None


def attributor_of(
    attributor: GivenAttributor | None,
    model: Model | None,
    prompts: PromptLibrary,
    concurrency: int,
) -> Attributor | None:
    """Return what judges the answers, if anything.

    Args:
        attributor: What is given.
        model: Judges, if a chat model is to judge and none is named.
        prompts: The library of prompts.
        concurrency: How many questions a chat model that judges gets at once.

    Raises:
        InputError: What is given cannot judge.
    """
    if isinstance(attributor, BaseChatModel):
        chat = ChatModel.of(attributor)
        return open_attributor("llm", chat=chat, prompts=prompts, concurrency=concurrency)
    if isinstance(attributor, str):
        judge = model if isinstance(model, ChatModel) else None
        return open_attributor(attributor, chat=judge, prompts=prompts, concurrency=concurrency)
    if attributor is not None:
        require_method("attributor", attributor, "judge")
    return attributor
