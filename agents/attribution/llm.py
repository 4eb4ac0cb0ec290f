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
YES = "Yes"
NO = "No"

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
        concurrency: How many questions are open at once over all calls; at least 1.

    Raises:
        InputError: The concurrency is less than 1.
    """

    def __init__(
        self,
        model: ChatModel,
        name: AttributorName,
        prompts: PromptLibrary | None,
        concurrency: int,
    ) -> None:
        if concurrency < 1:
            raise InputError(f"The concurrency must be at least 1, not {concurrency}.")
        # The chat model caches its replies; here equal pairs within a call are merged.
        super().__init__(name.model_copy(update={"model": model.name}))
        prompts = prompts or PromptLibrary()
        self._model = model
        self._has_own_threshold = name.threshold is not None
        self._threshold = name.threshold or DEFAULT_THRESHOLD
        self._choice_prompt = prompts.get("attribute")
        self._object_prompt = prompts.get("attribute_json")
        self._limits = RequestLimits(concurrency)
        versions = f"{self._choice_prompt.sha256}+{self._object_prompt.sha256}"
        self.identity = (
            f"llm:{model.name} is={model.fingerprint} threshold={self._threshold:g} "
            f"prompts={versions}"
        )

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
        """Ask about each stretch of a document in turn."""
        if len(pair.hypothesis) > LONGEST_ANSWER:
            message = (
                f"The answer has {len(pair.hypothesis):,} characters; a model is asked about at "
                f"most {LONGEST_ANSWER:,}."
            )
            return Entailment("answer_too_long", message=message)
        verdicts = []
        for stretch in stretches(pair.premise):
            async with self._limits:
                verdicts.append(await self._ask(stretch, pair.hypothesis))

        # If a stretch failed, the document is undecided, unless another shows that it was used.
        usage = sum((verdict.usage for verdict in verdicts), Usage())
        is_used = any(verdict.attributed for verdict in verdicts)
        failed = [verdict for verdict in verdicts if verdict.status != "ok"]
        if failed and not is_used:
            return replace(failed[0], usage=usage)
        scores = [verdict.score for verdict in verdicts if verdict.score is not None]
        return Entailment("ok", is_used, max(scores, default=None), usage=usage)

    async def _ask(self, premise: str, hypothesis: str) -> Entailment:
        values = {
            "premise": fence(premise, STRETCH),
            "hypothesis": fence(hypothesis, LONGEST_ANSWER),
        }
        choice = await self._model.choice_probabilities(
            Question(self._choice_prompt, values), labels=(YES, NO)
        )
        if choice.status == "ok":
            score = choice.probabilities[YES]
            return Entailment("ok", score >= self._threshold, score, usage=choice.usage)
        if choice.status != "unsupported":
            return Entailment(choice.status, message=choice.message, usage=choice.usage)
        if self._has_own_threshold:
            message = (
                f"The model {self._model.name} gives no probabilities to compare with the "
                "threshold of attribution; leave the threshold out."
            )
            return Entailment("unsupported", message=message, usage=choice.usage)
        question = Question(self._object_prompt, values, _SCHEMA, _verdict_of)
        reply = await self._model.ask(question)
        usage = choice.usage + reply.usage
        if reply.status != "ok":
            return Entailment(reply.status, message=reply.message, usage=usage)
        return Entailment("ok", bool(reply.value["entailed"]), usage=usage)


def _verdict_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object with a verdict as a boolean; raises ValueError if it has none."""
    verdict = value.get("entailed")
    if isinstance(verdict, str):
        verdict = VERDICTS.get(verdict.strip().casefold())
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
    starts = range(0, max(len(text) - shared, 1), longest - shared)
    return [text[start : start + longest] for start in starts]
