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

from pydantic import BaseModel, StrictBool, ValidationError

from fairqr.agents.attribution.attributor import Attributor, Pair
from fairqr.agents.statistics import exact_ends, special
from fairqr.base.errors import InputError, ModelError
from fairqr.base.files import write_beside
from fairqr.base.settings import data_dir

LEAST_PAIRS = 30
"""With fewer pairs, or pairs of only one class, we conclude nothing."""

Finding = Literal["better", "chance", "unclear"]
"""``better``: the whole interval of the accuracy is above the commoner answer's;
``chance``: it is not; ``unclear``: too few pairs, or pairs of only one class."""


class LabelledPair(BaseModel, frozen=True):
    """A pair with a label.

    Attributes:
        premise: The document.
        hypothesis: The answer.
        entailed: Whether the answer must be true if the document is.
    """

    premise: str
    hypothesis: str
    entailed: StrictBool


class AttributorCheck(BaseModel, frozen=True, extra="forbid"):
    """How well an attributor did on labelled pairs.

    Attributes:
        attributor: Its full name.
        identity: A hash of everything that its verdicts depend on.
        source: The file of pairs, or how they were made.
        pairs: How many pairs there were.
        judged: How many of them got a verdict; the figures below are about these.
        failures: How many got no verdict, by status.
        accuracy: The share of right verdicts, in [0, 1].
        low, high: The exact 95 % interval of the accuracy (Clopper and Pearson 1934).
        majority: The share of the commoner label, which is the accuracy of a constant verdict.
        confusion: How many pairs have each label (first word) and verdict (second word).
        finding: The conclusion; see Finding.
    """

    attributor: str
    identity: str
    source: str
    pairs: int
    judged: int
    failures: dict[str, int]
    accuracy: float
    low: float
    high: float
    majority: float
    confusion: dict[str, int]
    finding: Finding

    @property
    def sentence(self) -> str:
        """A sentence that says what the check found."""
        failed = self.pairs - self.judged
        failures = f"; {failed:,} more got no verdict" if failed else ""
        accuracy = (
            f"{self.attributor} is right on {self.accuracy:.1%} of {self.judged:,} pairs "
            f"(95 % interval {self.low:.1%} to {self.high:.1%}{failures}), where the commoner "
            f"answer alone is right on {self.majority:.1%}"
        )
        conclusions: dict[Finding, str] = {
            "better": ": better than chance on pairs like these.",
            "unclear": f": that says nothing yet; use at least {LEAST_PAIRS} pairs, of both kinds.",
            "chance": "; that is no better than a coin, so do not use it to judge as it is.",
        }
        return f"{accuracy}{conclusions[self.finding]}"


async def check_attributor(
    attributor: Attributor, pairs: Sequence[LabelledPair], *, source: str
) -> AttributorCheck:
    """Judge all pairs and compare the verdicts with the labels.

    Args:
        attributor: What to check.
        pairs: The pairs.
        source: Where they come from.

    Raises:
        ModelUnavailableError: The attributor cannot be started.
        ModelError: It judged no pair.
        InputError: There is no pair.
    """
    if not pairs:
        raise InputError(f"{source} has no pairs; write one JSON object on each line.")
    special()  # rather than when all is judged
    await attributor.start()
    verdicts = await attributor.judge([Pair(pair.premise, pair.hypothesis) for pair in pairs])
    failed = [verdict for verdict in verdicts if verdict.status != "ok"]
    judged = len(pairs) - len(failed)
    if not judged:
        reason = failed[0].message.rstrip(".") or failed[0].status
        problem = f"{attributor.name} judged none of {len(pairs):,} pairs ({reason})"
        raise ModelError(failed[0].status, f"{problem}, so nothing is known about it.")

    # By label and verdict.
    cells: Counter[tuple[bool, bool | None]] = Counter()
    for pair, verdict in zip(pairs, verdicts, strict=True):
        if verdict.status == "ok":
            cells[pair.entailed, verdict.attributed] += 1
    right = cells[True, True] + cells[False, False]
    positive = cells[True, True] + cells[True, False]
    majority = max(positive, judged - positive)

    low, high = map(float, exact_ends(right, judged, level=0.95))
    has_both_classes = 0 < positive < judged
    finding: Finding = "unclear"
    if judged >= LEAST_PAIRS and has_both_classes:
        finding = "better" if low > majority / judged else "chance"
    return AttributorCheck(
        attributor=attributor.name,
        identity=identity_of(attributor) or "",
        source=source,
        pairs=len(pairs),
        judged=judged,
        failures=dict(Counter(verdict.status for verdict in failed)),
        accuracy=right / judged,
        low=low,
        high=high,
        majority=majority / judged,
        confusion={
            "entailed_attributed": cells[True, True],
            "entailed_not": cells[True, False],
            "not_attributed": cells[False, True],
            "not_not": cells[False, False],
        },
        finding=finding,
    )


def identity_of(attributor: Attributor) -> str | None:
    """Return a hash of everything that an attributor's verdicts depend on.

    That is its name, and its weights, its server and its prompts if it has them. Our attributors
    state it in ``identity``; for others we only use the name.

    Returns:
        64 hexadecimal digits, or None if it is unknown before the attributor is started.
    """
    identity = getattr(attributor, "identity", attributor.name)
    return _hash(identity) if identity else None


def remember(check: AttributorCheck) -> None:
    """Keep a check in the data folder, replacing the last one of the same attributor."""
    name = f"{_hash(check.attributor)[:32]}-{check.identity[:16]}.json"
    write_beside(data_dir() / "attributors" / name, check.model_dump_json(indent=2) + "\n")


def unchecked_warning(attributor: Attributor) -> str | None:
    """Return a warning to show before this attributor's verdicts are used, or None.

    It reads small files. Start the attributor first. Until its weights are known, we assume the
    checked attributor of the same name; of several checks, one that is not ``better`` counts.
    """
    name = attributor.name
    identity = identity_of(attributor)
    checks = []
    for path in data_dir().glob(f"attributors/{_hash(name)[:32]}-*.json"):
        check = _read(path)
        if check and identity in (None, check.identity):
            checks.append(check)
    if not checks:
        return (
            f"The attributor '{name}' was never checked as it is now, so its verdicts may be worth "
            f"nothing; try: fairqr attribution check notables --attributor '{name}'."
        )
    for check in checks:
        if check.finding != "better":
            return f"Note the attributor's last check: {check.sentence}"
    return None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> AttributorCheck | None:
    try:
        return AttributorCheck.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):  # no file, or one of another version of fairqr
        return None
