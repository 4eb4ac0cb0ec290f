"""What came of checking an attributor, and what it means in words."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["LEAST_PAIRS", "AttributorCheck", "Confusion", "Finding"]

LEAST_PAIRS = 30
"""With fewer pairs, or with one class only, nothing is concluded."""

GOOD_ORDER = 0.7
"""The AUC from which another threshold is worth a try."""

Finding = Literal["better", "chance", "unclear"]
"""``better`` than always giving the commoner answer, by the whole interval of the accuracy;
``chance``: not shown to be; ``unclear``: too few pairs, or of one class only."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Confusion(_Part):
    """How many pairs, by what is so (first word) and what was said (second)."""

    entailed_attributed: int
    entailed_not: int
    not_attributed: int
    not_not: int


class AttributorCheck(_Part):
    """What an attributor reached on labelled pairs.

    Attributes:
        attributor: Its full name.
        identity: A hash of all that its verdicts depend on.
        source: The file of pairs, or how they were made.
        pairs: How many there were.
        judged: How many of them got a verdict; all else is about these.
        failures: How many did not, by status.
        message: Why the first of these did not; empty where none failed.
        accuracy: The share of right verdicts, in [0, 1]; None where none was judged.
        low, high: The 95 % bootstrap interval of the accuracy.
        majority: The share of the commoner label, which a constant verdict reaches.
        auc: The area under the ROC curve of the scores, ties counted half; None where one class is
            missing, or the attributor gives no scores.
        confusion: The four counts.
        finding: What follows; see Finding.
    """

    attributor: str
    identity: str
    source: str
    pairs: int
    judged: int
    failures: dict[str, int]
    message: str
    accuracy: float | None
    low: float | None
    high: float | None
    majority: float | None
    auc: float | None
    confusion: Confusion
    finding: Finding

    @property
    def _failed(self) -> str:
        number = self.pairs - self.judged
        return f"; {number:,} more got no verdict" if number else ""

    @property
    def sentence(self) -> str:
        """What it means, in words."""
        if self.accuracy is None or self.low is None or self.high is None or self.majority is None:
            why = self.message.rstrip(".") or ", ".join(sorted(self.failures))
            return (
                f"{self.attributor} judged none of {self.pairs:,} pairs ({why}), so nothing is "
                "known of it."
            )
        right = (
            f"{self.attributor} is right on {self.accuracy:.1%} of {self.judged:,} pairs "
            f"(95 % interval {self.low:.1%} to {self.high:.1%}{self._failed}), where the commoner "
            f"answer alone is right on {self.majority:.1%}"
        )
        if self.finding == "better":
            return f"{right}: better than chance on pairs like these."
        if self.finding == "unclear":
            return (
                f"{right}: that says nothing yet; give it at least {LEAST_PAIRS} pairs, of both "
                "kinds."
            )
        coin = "no better than a coin, so do not use it to judge"
        if self.auc is not None and self.auc >= GOOD_ORDER:
            return (
                f"{right}; that is {coin} as it is. Its scores do tell the two kinds apart "
                f"(AUC {self.auc:.2f}), so try another --threshold."
            )
        return f"{right}; that is {coin}."
