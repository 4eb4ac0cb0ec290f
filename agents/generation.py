"""Generators: what answers a question from documents, in the order of a ranking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fairqr.agents.replies import Status, Usage
from fairqr.prompts.template import PromptTemplate

__all__ = [
    "Generation",
    "GenerationRequest",
    "GenerationStatus",
    "Generator",
    "OnToken",
    "temperature_of",
]

GenerationStatus = Literal[Status, "empty"]
"""``empty``: the model answered with nothing, or white space only. See :data:`Status`."""

OnToken = Callable[[str], None]
"""Told each piece of an answer as it is written."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to answer, and from what.

    Attributes:
        prompt: Any with the placeholders ``question`` and ``documents``, and an ``item``.
        question: As the user wrote it.
        sources: The documents in order of rank, each as the fields that the prompt's ``item`` has
            placeholders for; none asks for an answer without any document.
        temperature: In [0, 2]; the prompt's own where None.
        seed: For repeatable sampling, where the model supports it.
    """

    prompt: PromptTemplate
    question: str
    sources: Sequence[Mapping[str, str]]
    temperature: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """What came of it.

    Attributes:
        status: ``ok``, or why there is no answer.
        text: The answer, without white space around it; empty unless ``ok``.
        message: Why it failed, for people; empty if ``ok``.
        usage: What it cost.
    """

    status: GenerationStatus
    text: str = ""
    message: str = ""
    usage: Usage = Usage()  # noqa: RUF009 - frozen


class Generator(Protocol):
    """Writes answers."""

    @property
    def name(self) -> str:
        """What answered, as it stands in results."""
        ...

    async def start(self) -> None:
        """Make ready; raises ModelUnavailableError where something is missing."""
        ...

    async def generate(
        self,
        request: GenerationRequest,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> Generation:
        """Answer; never raises for what a model does wrong.

        Args:
            request: What to answer.
            deadline: Seconds from now after which to give up.
            on_token: Told each piece as it comes; the whole answer at once where the model, or the
                cache, gives it at once.
        """
        ...


def temperature_of(generator: Generator, asked: float | None) -> float | None:
    """Return the temperature of answers if one is asked for: the same, or the generator's own."""
    own = getattr(generator, "temperature_of", None)
    return asked if own is None else own(asked)
