"""Checks an attributor on labelled pairs, and keeps the outcome.

A small model may be useless as a judge, and its verdicts do not show that. So we measure an
attributor on pairs with known answers, and commands warn if it was never measured.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from fairqr.agents.attribution.pairs import LabelledPair
from fairqr.agents.attribution.verdicts import Attributor
from fairqr.agents.statistics import binomial_interval
from fairqr.base.files import write_beside
from fairqr.base.settings import data_dir

LEAST_PAIRS = 30
"""With fewer pairs, or pairs of only one class, we conclude nothing."""

GOOD_ORDER = 0.7
"""From this AUC on, we suggest another threshold."""

Finding = Literal["better", "chance", "unclear"]
"""``better``: the whole interval of the accuracy is above that of the commoner answer alone;
``chance``: it is not; ``unclear``: too few pairs, or pairs of only one class."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Confusion(_Part):
    """The number of pairs by the label (first word) and the verdict (second word)."""

    entailed_attributed: int
    entailed_not: int
    not_attributed: int
    not_not: int


class AttributorCheck(_Part):
    """How well an attributor did on labelled pairs.

    Attributes:
        attributor: Its full name.
        identity: A hash of everything that its verdicts depend on.
        source: The file of pairs, or how they were made.
        pairs: How many pairs there were.
        judged: How many of them got a verdict; the figures below are about these.
        failures: How many got no verdict, by status.
        message: Why the first of these failed; empty if none failed.
        accuracy: The share of right verdicts, in [0, 1]; None if no pair was judged.
        low, high: The exact 95 % interval of the accuracy (Clopper and Pearson 1934).
        majority: The share of the commoner label, which is the accuracy of a constant verdict.
        auc: The area under the ROC curve of the scores, ties counted half; None if one class is
            missing, or the attributor gives no scores.
        confusion: The four counts.
        finding: The conclusion; see Finding.
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
        """A sentence that says what the check found."""
        if self.accuracy is None or self.low is None or self.high is None or self.majority is None:
            why = self.message.rstrip(".") or ", ".join(sorted(self.failures))
            return (
                f"{self.attributor} judged none of {self.pairs:,} pairs ({why}), so nothing is "
                "known about it."
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
                f"{right}: that says nothing yet; use at least {LEAST_PAIRS} pairs, of both kinds."
            )
        coin = "no better than a coin, so do not use it to judge"
        if self.auc is not None and self.auc >= GOOD_ORDER:
            return (
                f"{right}; that is {coin} as it is. Its scores do separate the two kinds "
                f"(AUC {self.auc:.2f}), so try another --threshold."
            )
        return f"{right}; that is {coin}."


async def check_attributor(
    attributor: Attributor, pairs: Sequence[LabelledPair], *, source: str
) -> AttributorCheck:
    """Judge all pairs and compare the verdicts with the labels.

    Args:
        attributor: What to check.
        pairs: At least one.
        source: Where they come from.

    Raises:
        ModelUnavailableError: The attributor cannot be started.
    """
    await attributor.start()
    verdicts = await attributor.judge([pair.pair for pair in pairs])
    good = [
        (pair.entailed, bool(verdict.attributed), verdict.score)
        for pair, verdict in zip(pairs, verdicts, strict=True)
        if verdict.status == "ok"
    ]
    failed = [verdict for verdict in verdicts if verdict.status != "ok"]
    cells = Counter((entailed, attributed) for entailed, attributed, _ in good)
    right, positive = cells[True, True] + cells[False, False], sum(e for e, _, _ in good)
    accuracy = majority = low = high = auc = None
    if good:
        accuracy = right / len(good)
        majority = max(positive, len(good) - positive) / len(good)
        interval = binomial_interval(right, len(good))
        low, high = (interval.low, interval.high) if interval else (None, None)
        if all(score is not None for _, _, score in good):
            auc = area_under_curve(
                [e for e, _, _ in good], [s for _, _, s in good if s is not None]
            )
    finding: Finding = "unclear"
    if len(good) >= LEAST_PAIRS and 0 < positive < len(good) and low is not None:
        finding = "better" if low > (majority or 0) else "chance"
    return AttributorCheck(
        attributor=attributor.name,
        identity=identity_of(attributor) or "",
        source=source,
        pairs=len(pairs),
        judged=len(good),
        failures=dict(Counter(verdict.status for verdict in failed)),
        message=next((verdict.message for verdict in failed if verdict.message), ""),
        accuracy=accuracy,
        low=low,
        high=high,
        majority=majority,
        auc=auc,
        confusion=Confusion(
            entailed_attributed=cells[True, True],
            entailed_not=cells[True, False],
            not_attributed=cells[False, True],
            not_not=cells[False, False],
        ),
        finding=finding,
    )


def identity_of(attributor: Attributor) -> str | None:
    """Return a hash of everything that an attributor's verdicts depend on.

    That is its name, and its weights, its server and its prompts if it has them. Our attributors
    state it in ``identity``; for others we only use the name.

    Returns:
        64 hexadecimal digits, or None if it is unknown before the attributor is started.
    """
    try:
        identity: str = getattr(attributor, "identity", attributor.name)
    except RuntimeError:
        return None
    return _hash(identity)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _folder() -> Path:
    return data_dir() / "attributors"


def _file(name: str, identity: str) -> Path:
    return _folder() / f"{_hash(name)[:32]}-{identity[:16]}.json"


def remember(check: AttributorCheck) -> bool:
    """Keep a check in the data folder, replacing the last one of the same attributor.

    A check that judged nothing is not kept. An unclear check does not replace a clear one of more
    pairs.

    Returns:
        Whether the check was kept.
    """
    if not check.judged:
        return False
    path = _file(check.attributor, check.identity)
    last = _read(path)
    if last and last.finding != "unclear" == check.finding and check.judged < last.judged:
        return False
    write_beside(path, check.model_dump_json(indent=2) + "\n")
    return True


def recall(name: str, identity: str | None = None) -> AttributorCheck | None:
    """Return the last check of an attributor, or None if it was never checked.

    Args:
        name: Its full name.
        identity: As :func:`identity_of` returns it. Without it, all checks of this name count, and
            one that is not ``better`` comes first.
    """
    if identity is not None:
        return _read(_file(name, identity))
    checks = [check for check in known_checks() if check.attributor == name]
    return min(checks, key=lambda check: check.finding == "better", default=None)


def known_checks() -> list[AttributorCheck]:
    """Return the last check of every attributor, sorted by name.

    A name occurs several times if its weights, its server or its prompts have changed.
    """
    found = [check for path in _folder().glob("*.json") if (check := _read(path))]
    return sorted(found, key=lambda check: (check.attributor, check.identity))


def _read(path: Path) -> AttributorCheck | None:
    try:
        return AttributorCheck.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):  # no file, or one of another version of fairqr
        return None


def unchecked_warning(attributor: Attributor) -> str | None:
    """Return a warning to show before this attributor's verdicts are used, or None.

    It reads small files. Start the attributor first. Until its weights are known, we assume the
    checked attributor of the same name.
    """
    name = attributor.name
    check = recall(name, identity_of(attributor))
    if check is None:
        was = f"The attributor '{name}' was never checked"
        if recall(name) is not None:
            was = (
                f"The attributor '{name}' was checked with other weights, another server or other "
                "prompts"
            )
        return (
            f"{was}, so its verdicts may be worth nothing; "
            f"try: fairqr attribution check notables --attributor '{name}'."
        )
    if check.finding == "better":
        return None
    return f"Note the attributor's last check: {check.sentence}"


def area_under_curve(labels: ArrayLike, scores: ArrayLike) -> float | None:
    """Return the area under the ROC curve (Hanley and McNeil 1982), from the ranks of the scores.

    It is the probability that a random positive has a greater score than a random negative. Equal
    scores count half.

    Args:
        labels: True for positives, shape (n,).
        scores: Finite, shape (n,).

    Returns:
        The area in [0, 1], or None if one class is missing.
    """
    positive = np.asarray(labels, dtype=bool)
    values: NDArray[np.float64] = np.asarray(scores, dtype=np.float64)
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return None
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # equal values get their mean rank
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))
