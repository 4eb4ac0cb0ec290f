"""Attribution by a chat model: would it say Yes, asked whether the answer must be true?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fairqr.agents.attribution.naming import AttributorName
from fairqr.agents.attribution.verdicts import Pair, Verdict, without_words
from fairqr.agents.chat import ChatModel
from fairqr.agents.question import Question
from fairqr.agents.replies import Usage
from fairqr.base.errors import InputError
from fairqr.base.loops import PerLoop
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import fence

__all__ = ["DEFAULT_THRESHOLD", "PARALLEL", "LlmAttributor", "stretches"]

DEFAULT_THRESHOLD = 0.5
YES, NO = "Yes", "No"

PARALLEL = 8
"""How many questions are under way at once, where nothing else is said."""

STRETCH = 4000
"""How many characters of a document are asked about at once, which fits the embedded model."""

SHARED = 500
"""How many characters neighbouring stretches have in common."""

LONGEST_ANSWER = 1500
"""In characters; a longer answer would leave too little room for a document."""

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"entailed": {"type": "boolean"}},
    "required": ["entailed"],
    "additionalProperties": False,
}


class LlmAttributor:
    """Judges by a chat model.

    The score is P(Yes) / (P(Yes) + P(No)) for the first token of its reply. Where the provider
    tells no probabilities, the model is asked for a JSON verdict, which has no score: a threshold
    that was chosen could not be kept to, so there is no verdict then. A long document is asked
    about in stretches that overlap, and counts as used if it does by any of them.

    Args:
        model: Which; its cache keeps the replies.
        name: The threshold, in (0, 1]; 0.5 where there is none.
        prompts: Has ``attribute`` and ``attribute_json``; the shipped and the user's own where
            None.
        concurrency: How many questions are under way at once, over all calls; at least 1.

    Raises:
        InputError: The concurrency is less than 1, or a threshold was chosen for a model that is
            known to give no probabilities.
    """

    def __init__(
        self,
        model: ChatModel,
        name: AttributorName = AttributorName("llm"),  # noqa: B008 - frozen
        prompts: PromptLibrary | None = None,
        concurrency: int = PARALLEL,
    ) -> None:
        if concurrency < 1:
            raise InputError(f"The concurrency must be at least 1, not {concurrency}.")
        if name.threshold is not None and not model.gives_probabilities:
            raise InputError(_no_threshold(model.name))
        prompts = prompts or PromptLibrary()
        self._model = model
        self._name = AttributorName("llm", model.name, name.threshold)
        self._threshold = DEFAULT_THRESHOLD if name.threshold is None else name.threshold
        self._weighed = prompts.get("attribute")
        self._asked = prompts.get("attribute_json")
        self._concurrency = concurrency
        self._places: PerLoop[asyncio.Semaphore] = PerLoop()

    @property
    def name(self) -> str:
        """``llm:``, the model, and the threshold where one was chosen."""
        return str(self._name)

    @property
    def identity(self) -> str:
        """What a verdict depends on."""
        prompts = f"{self._weighed.sha256}+{self._asked.sha256}"
        model = f"llm:{self._model.name} is={self._model.fingerprint}"
        return f"{model} threshold={self._threshold:g} prompts={prompts}"

    async def start(self) -> None:
        """Start the model.

        Raises:
            ModelUnavailableError: It cannot be started.
        """
        await self._model.start("choice")

    async def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Ask about all pairs, several at a time.

        Raises:
            ModelUnavailableError: The model cannot be started.
        """
        await self._model.start("choice")
        places = self._places.get() or self._places.setdefault(asyncio.Semaphore(self._concurrency))

        async def one(pair: Pair) -> Verdict:
            if empty := without_words(pair):
                return empty
            if len(pair.hypothesis) > LONGEST_ANSWER:
                return Verdict(
                    "answer_too_long",
                    message=f"The answer has {len(pair.hypothesis):,} characters; "
                    f"a model is asked about {LONGEST_ANSWER:,} at the most.",
                )
            found = []
            for stretch in stretches(pair.premise):
                async with places:
                    found.append(await self._ask(stretch, pair.hypothesis))
            return _together(found)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(pair)) for pair in pairs]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the one for which the others were stopped
        return [task.result() for task in tasks]

    async def _ask(self, premise: str, hypothesis: str) -> Verdict:
        values = {
            "premise": fence(premise, STRETCH),
            "hypothesis": fence(hypothesis, LONGEST_ANSWER),
        }
        choice = await self._model.weigh(Question(self._weighed, values), labels=(YES, NO))
        if choice.status == "ok":
            score = choice.probabilities[YES]
            return Verdict("ok", score >= self._threshold, score, usage=choice.usage)
        if choice.status != "unsupported":
            return Verdict(choice.status, message=choice.message, usage=choice.usage)
        if self._name.threshold is not None:
            message = _no_threshold(self._model.name)
            return Verdict("unsupported", message=message, usage=choice.usage)
        reply = await self._model.ask(Question(self._asked, values, _SCHEMA, _verdict_of))
        usage = choice.usage + reply.usage
        if reply.status != "ok":
            return Verdict(reply.status, message=reply.message, usage=usage)
        return Verdict("ok", bool(reply.value["entailed"]), usage=usage)


def _no_threshold(model: str) -> str:
    return (
        f"The model {model} tells no probabilities, with which the threshold of attribution could "
        "be compared; leave the threshold out."
    )


def _verdict_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(value.get("entailed"), bool):
        raise ValueError("'entailed' must be true or false")
    return {"entailed": value["entailed"]}


def _together(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a document from those on its stretches.

    One that failed leaves the document undecided, unless another says that it was used.
    """
    usage = sum((verdict.usage for verdict in verdicts), Usage())
    good = [verdict for verdict in verdicts if verdict.status == "ok"]
    bad = [verdict for verdict in verdicts if verdict.status != "ok"]
    used = any(verdict.attributed for verdict in good)
    if bad and not used:
        return Verdict(bad[0].status, message=bad[0].message, usage=usage)
    score = max((verdict.score for verdict in good if verdict.score is not None), default=None)
    return Verdict("ok", used, score, usage=usage)


def stretches(text: str, longest: int = STRETCH, shared: int = SHARED) -> list[str]:
    """Cut a text into stretches that overlap, so that what one cuts its neighbour has whole.

    Args:
        text: With words.
        longest: Characters of a stretch, at the most.
        shared: Characters that neighbours have in common; less than ``longest``.
    """
    text = " ".join(text.split())
    begins = range(0, max(len(text) - shared, 1), longest - shared)
    return [text[begin : begin + longest] for begin in begins]
