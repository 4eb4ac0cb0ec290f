"""A cache of verdicts on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from fairqr.agents.attribution.verdicts import Attributor, Pair, Verdict
from fairqr.agents.models.cache import ReplyCache, cache_key
from fairqr.agents.models.replies import Usage


class Identified(Attributor, Protocol):
    """An attributor that states what its verdicts depend on."""

    @property
    def identity(self) -> str:
        """The model, its weights if known, and the threshold; only read it after ``start()``."""
        ...


class CachedAttributor:
    """Judges each pair once, even if it occurs several times in a call or in earlier calls.

    Only verdicts with status ``ok`` are cached. The usage of a cached verdict states its original
    cost as cached.

    Args:
        attributor: The attributor that judges.
        cache: Where to keep verdicts; optional.
    """

    def __init__(self, attributor: Identified, cache: ReplyCache | None) -> None:
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
        distinct = list(dict.fromkeys(pairs))
        keys = {pair: self._key(pair) for pair in distinct}
        known: dict[Pair, Verdict] = {}
        if self._cache:
            stored = await self._cache.get_many(list(keys.values()))
            kept = ((pair, _read(stored.get(key))) for pair, key in keys.items())
            known = {pair: verdict for pair, verdict in kept if verdict}
        asked = [pair for pair in distinct if pair not in known]
        if asked:
            verdicts = dict(zip(asked, await self._attributor.judge(asked), strict=True))
            if self._cache:
                good = {keys[p]: _written(v) for p, v in verdicts.items() if v.status == "ok"}
                await self._cache.put_many(good)
            known |= verdicts
        return list(_each_paid_once(pairs, known))

    def _key(self, pair: Pair) -> str:
        return cache_key(attributor=self.identity, premise=pair.premise, hypothesis=pair.hypothesis)


def _each_paid_once(pairs: Iterable[Pair], known: Mapping[Pair, Verdict]) -> Iterable[Verdict]:
    """Yield the verdict on each pair; of equal pairs, only the first has the cost."""
    seen: set[Pair] = set()
    for pair in pairs:
        verdict = known[pair]
        if pair in seen:
            verdict = Verdict(verdict.status, verdict.attributed, verdict.score, verdict.message)
        seen.add(pair)
        yield verdict


def _written(verdict: Verdict) -> dict[str, Any]:
    usage = verdict.usage
    return {
        "attributed": verdict.attributed,
        "score": verdict.score,
        "calls": usage.model_calls + usage.cached_calls,
        "tokens": usage.prompt_tokens + usage.completion_tokens + usage.cached_tokens,
    }


def _read(stored: Mapping[str, Any] | None) -> Verdict | None:
    """Return a cached verdict, or None if another version of fairqr stored something else."""
    if stored is None:
        return None
    match stored:
        case {
            "attributed": bool(attributed),
            "score": None | float() | int() as score,
            "calls": int(calls),
            "tokens": int(tokens),
        }:
            usage = Usage(cached_calls=calls, cached_tokens=tokens)
            return Verdict("ok", attributed, score, usage=usage)
    return None
