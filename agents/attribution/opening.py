"""Opens attributors by their names, and keeps their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fairqr.agents.attribution.attributor import Attributor, AttributorName, Pair, Verdict
from fairqr.agents.models.cache import ReplyCache, cache_key, kept_in
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError
from fairqr.base.settings import default_model
from fairqr.prompts.library import PromptLibrary

DEFAULT_ATTRIBUTOR = "overlap"
"""It works offline and at once; a study should use PAPER_ATTRIBUTOR."""

PAPER_ATTRIBUTOR = "transformers"

ATTRIBUTORS = {
    "overlap": "shared words, without a model; a baseline that sees no paraphrase and no negation",
    "transformers[:MODEL]": "an NLI model: the paper's FacebookAI/roberta-large-mnli, or yours",
    "llm[:MODEL]": "a chat model, asked whether the answer must be true; check it first",
}
"""A line on each kind of attributor, by the form of its name."""


def open_attributor(
    name: str = DEFAULT_ATTRIBUTOR,
    *,
    chat: ChatModel | None = None,
    cache: bool | ReplyCache = True,
    threshold: float | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int | None = None,
    **options: Any,
) -> Attributor:
    """Return an attributor; it loads nothing before it is started.

    Args:
        name: As in ATTRIBUTORS. Options may follow, such as ``?threshold=0.7``, or
            ``?entailment=2`` for a classifier that does not name its outputs.
        chat: The chat model of ``llm`` without a name; defaults to the configured one.
        cache: Whether to keep verdicts on disk so that nothing is judged twice, or the cache to
            use. It does not apply to ``chat``, which has its own cache or none.
        threshold: The score in (0, 1] from which a document counts as used; defaults to the name's
            option. Without either, entailment must be the top label of NLI models, and the
            threshold is 0.7 for overlap and 0.5 for chat models.
        prompts: For ``llm``; defaults to the shipped prompts and the user's own.
        concurrency: For ``llm``, how many questions are open at once over all calls; defaults to 8.
            Other attributors run one batch after the other.
        options: More for the :class:`ChatModel` that ``llm`` opens, such as ``base_url``.

    Raises:
        InputError: The attributor does not exist, a number is out of range, or an option does not
            fit this attributor.
        ModelUnavailableError: The name of a chat model is malformed.
    """
    parsed = AttributorName.parse(name)
    if threshold is not None:
        parsed = replace(parsed, threshold=threshold)
    if parsed.entailment is not None and parsed.kind != "transformers":
        raise InputError(f"The attributor '{parsed.kind}' has no outputs; leave entailment= out.")
    if options and parsed.kind in ("overlap", "transformers"):
        raise InputError(
            f"The attributor '{parsed.kind}' asks no server; leave {next(iter(options))} out, or "
            "choose llm."
        )
    kept = kept_in(cache)
    match parsed.kind, parsed.model:
        case "overlap", "":
            from fairqr.agents.attribution.overlap import OverlapAttributor

            return OverlapAttributor(parsed)  # faster than a cache
        case "llm", model:
            from fairqr.agents.attribution.llm import PARALLEL, LlmAttributor

            if chat is None or model not in ("", chat.name):
                chat = ChatModel(model or default_model(), cache=kept, **options)
            # The chat model caches its replies; this one only merges equal pairs within a call.
            at_once = PARALLEL if concurrency is None else concurrency
            return CachedAttributor(LlmAttributor(chat, parsed, prompts, at_once), None)
        case "transformers", _:
            from fairqr.agents.attribution.nli import TransformersAttributor

            return CachedAttributor(TransformersAttributor(parsed), kept)
    raise InputError(
        f"There is no attributor '{parsed.kind}{':' * bool(parsed.model)}{parsed.model}'; "
        f"choose {', '.join(ATTRIBUTORS)}."
    )


class IdentifiedAttributor(Attributor, Protocol):
    """An attributor that states what its verdicts depend on."""

    @property
    def identity(self) -> str:
        """The model, its weights if known, and the threshold; only read it after ``start()``."""
        ...


class CachedAttributor:
    """Judges each pair once, even if it occurs several times in a call or in earlier calls.

    Only verdicts with status ``ok`` are kept. The usage of a kept verdict states its original cost
    as cached, and of equal pairs in a call only the first has the cost.

    Args:
        attributor: The attributor that judges.
        cache: Where to keep verdicts; optional.
    """

    def __init__(self, attributor: IdentifiedAttributor, cache: ReplyCache | None) -> None:
        self._attributor = attributor
        self._cache = cache

    @property
    def name(self) -> str:
        """The attributor's name."""
        return self._attributor.name

    @property
    def identity(self) -> str:
        """The attributor's identity."""
        return self._attributor.identity

    async def start(self) -> None:
        """Start the attributor."""
        await self._attributor.start()

    async def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Look up all pairs, and judge those that are not in the cache."""
        await self.start()
        keys = {
            it: cache_key(attributor=self.identity, premise=it.premise, hypothesis=it.hypothesis)
            for it in pairs
        }
        kept = await self._cache.get_many([*keys.values()]) if self._cache else {}
        known = {it: found for it, key in keys.items() if (found := _read(kept.get(key, {})))}
        if asked := [it for it in keys if it not in known]:
            judged = dict(zip(asked, await self._attributor.judge(asked), strict=True))
            good = {
                keys[it]: _written(found) for it, found in judged.items() if found.status == "ok"
            }
            if self._cache:
                await self._cache.put_many(good)
            known |= judged
        verdicts = []
        for it in pairs:
            verdicts.append(known[it])
            known[it] = replace(known[it], usage=Usage())
        return verdicts


def _written(verdict: Verdict) -> dict[str, Any]:
    usage = verdict.usage
    return {
        "attributed": verdict.attributed,
        "score": verdict.score,
        "calls": usage.model_calls + usage.cached_calls,
        "tokens": usage.prompt_tokens + usage.completion_tokens + usage.cached_tokens,
    }


def _read(kept: Mapping[str, Any]) -> Verdict | None:
    """Return a kept verdict, or None if there is none or another version of fairqr kept it."""
    match kept:
        case {
            "attributed": bool(attributed),
            "score": None | float() | int() as score,
            "calls": int(calls),
            "tokens": int(tokens),
        }:
            usage = Usage(cached_calls=calls, cached_tokens=tokens)
            return Verdict("ok", attributed, score, usage=usage)
    return None
