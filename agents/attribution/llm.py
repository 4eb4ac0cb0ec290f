"""Attribution by a chat model, which is asked whether the answer must be true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairqr.agents.attribution.attributor import AttributorName, CachedAttributor, Entailment, Pair
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.replies import Question, Usage
from fairqr.base.errors import InputError
from fairqr.base.loops import run_together
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import fence
from fairqr.retrieval.engines.limits import RequestLimits

DEFAULT_THRESHOLD = 0.5
YES, NO = "Yes", "No"

STRETCH = 4000
"""How many characters of a document one question contains; that fits the embedded model."""

SHARED = 500
"""How many characters neighbouring stretches have in common."""

LONGEST_ANSWER = 1500
"""In characters; a longer answer would leave too little room for a document."""

VERDICTS = {"true": True, "yes": True, "false": False, "no": False}
"""What some models write in place of a boolean."""

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"entailed": {"type": "boolean"}},
    "required": ["entailed"],
    "additionalProperties": False,
}


class LlmAttributor(CachedAttributor):
    """Judges with a chat model.

    The score is P(Yes) / (P(Yes) + P(No)) for the first token of the reply. If the provider gives
    no probabilities, we ask for a JSON verdict, which has no score. So there is no verdict if the
    user chose a threshold. A long document is split into overlapping stretches, and counts as used
    if any stretch does.

    Args:
        model: The chat model; its cache keeps the replies.
        name: Its threshold is in (0, 1] and defaults to 0.5.
        prompts: Contains ``attribute`` and ``attribute_json``; defaults to the shipped prompts and
            the user's own.
        at_once: How many questions are open at once over all calls; at least 1.

    Raises:
        InputError: The concurrency is less than 1.
    """

    def __init__(
        self, model: ChatModel, name: AttributorName, prompts: PromptLibrary | None, at_once: int
    ) -> None:
        if at_once < 1:
            raise InputError(f"The concurrency must be at least 1, not {at_once}.")
        # The chat model caches its replies; here equal pairs within a call are merged.
        super().__init__(name.model_copy(update={"model": model.name}))
        prompts = prompts or PromptLibrary()
        self._model = model
        self._chosen, self._threshold = name.threshold, name.threshold or DEFAULT_THRESHOLD
        self._scored, self._asked = prompts.get("attribute"), prompts.get("attribute_json")
        versions = f"{self._scored.sha256}+{self._asked.sha256}"
        asked = f"llm:{model.name} is={model.fingerprint}"
        self.identity = f"{asked} threshold={self._threshold:g} prompts={versions}"
        self._places = RequestLimits(at_once)

    async def start(self) -> None:
        """Start the model.

        Raises:
            ModelUnavailableError: It cannot be started.
        """
        await self._model.start("choice")

    async def judge_new(self, pairs: Sequence[Pair]) -> list[Entailment]:
        """Ask about all pairs, several at a time."""
        return await run_together(map(self._judge, pairs))

    async def _judge(self, pair: Pair) -> Entailment:
        if len(pair.hypothesis) > LONGEST_ANSWER:
            why = f"The answer has {len(pair.hypothesis):,} characters; a model is asked about at "
            return Entailment("answer_too_long", message=f"{why}most {LONGEST_ANSWER:,}.")
        found = []
        for stretch in stretches(pair.premise):
            async with self._places:
                found.append(await self._ask(stretch, pair.hypothesis))
        # If a stretch failed, the document is undecided, unless another shows that it was used.
        usage = sum((it.usage for it in found), Usage())
        is_used = any(it.attributed for it in found)
        failed = [it for it in found if it.status != "ok"]
        if failed and not is_used:
            return replace(failed[0], usage=usage)
        score = max((it.score for it in found if it.score is not None), default=None)
        return Entailment("ok", is_used, score, usage=usage)

    async def _ask(self, premise: str, hypothesis: str) -> Entailment:
        values = {
            "premise": fence(premise, STRETCH),
            "hypothesis": fence(hypothesis, LONGEST_ANSWER),
        }
        choice = await self._model.choice_probabilities(
            Question(self._scored, values), labels=(YES, NO)
        )
        if choice.status == "ok":
            score = choice.probabilities[YES]
            return Entailment("ok", score >= self._threshold, score, usage=choice.usage)
        if choice.status != "unsupported":
            return Entailment(choice.status, message=choice.message, usage=choice.usage)
        if self._chosen is not None:
            message = (
                f"The model {self._model.name} gives no probabilities to compare with the "
                "threshold of attribution; leave the threshold out."
            )
            return Entailment("unsupported", message=message, usage=choice.usage)
        reply = await self._model.ask(Question(self._asked, values, _SCHEMA, _verdict_of))
        usage = choice.usage + reply.usage
        if reply.status != "ok":
            return Entailment(reply.status, message=reply.message, usage=usage)
        return Entailment("ok", bool(reply.value["entailed"]), usage=usage)


def _verdict_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    said = value.get("entailed")
    verdict = VERDICTS.get(said.strip().casefold()) if isinstance(said, str) else said
    if not isinstance(verdict, bool):
        raise ValueError("'entailed' must be true or false")
    return {"entailed": verdict}


def stretches(text: str, longest: int = STRETCH, shared: int = SHARED) -> list[str]:
    """Cut a text into overlapping stretches, so that a sentence cut in one is whole in the next.

    Args:
        text: A text with words.
        longest: The largest number of characters in a stretch.
        shared: How many characters neighbours have in common; less than ``longest``.
    """
    text = " ".join(text.split())
    begins = range(0, max(len(text) - shared, 1), longest - shared)
    return [text[begin : begin + longest] for begin in begins]
