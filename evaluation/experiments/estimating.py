"""How long the rest of a run will take and what it will cost, from a few tasks that were timed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fairqr.agents.replies import Usage
from fairqr.base.prices import configured_prices
from fairqr.evaluation.experiments.progress import time_left

__all__ = ["Estimate", "Timing"]


@dataclass(slots=True)
class Timing:
    """What some records took, one after the other.

    The first one is not timed, because what it needs is still warming up. Of the others, those
    whose replies were all kept before are left out.

    Attributes:
        done: How much work all of them were.
        work: How much work those were that count.
        usage: Of models, for these.
        seconds: That these took.
    """

    done: float = 0.0
    work: float = 0.0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    _begun: float | None = field(default=None, init=False)

    def add(self, work: float, usage: Usage) -> None:
        """Take a record that was made just now."""
        now = time.monotonic()
        self.done += work
        if self._begun is None:
            self._begun = now
        elif usage.model_calls or not usage.cached_calls:
            self.work += work
            self.usage += usage
            self.seconds = now - self._begun


@dataclass(slots=True)
class Estimate:
    """What is left of a run, as far as it was timed.

    Attributes:
        seconds: That it will take.
        tokens: That models will read and write.
        cost: Of these tokens; None if a model that was asked has no price.
        is_whole: Whether all that is left was timed.
    """

    seconds: float = 0.0
    tokens: float = 0.0
    cost: float | None = 0.0
    is_whole: bool = True

    def add(self, model: str, work: float, timing: Timing) -> None:
        """Count what is left of a stage.

        Args:
            model: That is asked.
            work: How much work is left.
            timing: Of some records of the same pace.
        """
        if not timing.work:
            self.is_whole = self.is_whole and not work
            return
        share = work / timing.work
        read, written = timing.usage.prompt_tokens, timing.usage.completion_tokens
        self.seconds += share * timing.seconds
        self.tokens += share * (read + written)
        if read + written and self.cost is not None:
            prices = configured_prices()
            # A ranker stands before the name of its model, such as pairwise:openai:gpt-4o.
            price = prices.price_of(model) or prices.price_of(model.partition(":")[2])
            self.cost = self.cost + share * price.of(read, written) if price else None

    def sentence(self) -> str:
        """Return what is left, for people."""
        parts = [time_left(self.seconds)]
        if self.tokens >= 1:
            parts.append(f"{float(f'{self.tokens:.2g}'):,.0f} tokens")
        if self.cost:
            parts.append(configured_prices().text_of(float(f"{self.cost:.2g}")))
        listed = " and ".join([", ".join(parts[:-1]), parts[-1]]) if parts[1:] else parts[0]
        return f"{'about' if self.is_whole else 'at least'} {listed} are left"
