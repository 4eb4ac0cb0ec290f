"""Names of attributors: a kind, optionally a model, and optionally options.

``transformers:org/model?entailment=2&threshold=0.7`` has all three. Results state the name, and it
opens the same attributor again.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairqr.base.errors import InputError


def check_threshold(threshold: float | None) -> float | None:
    """Return a threshold, or None, after checking that it is above 0 and at most 1.

    Raises:
        InputError: It is out of range.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise InputError(
            f"The threshold of attribution must be above 0 and at most 1, not {threshold:g}."
        )
    return threshold


@dataclass(frozen=True, slots=True)
class AttributorName:
    """The parts of an attributor's name.

    Attributes:
        kind: For example ``transformers``.
        model: The part after the colon; may be empty.
        threshold: The score from which a document counts as used; optional. Each kind has its own
            default rule.
        entailment: The number of the model's output for entailment, from 0; by default it is looked
            up.
    """

    kind: str
    model: str = ""
    threshold: float | None = None
    entailment: int | None = None

    @classmethod
    def parse(cls, text: str) -> AttributorName:
        """Read a name.

        Raises:
            InputError: An option is unknown, occurs twice, or is not a number.
        """
        named, _, options = text.partition("?")
        kind, _, model = named.partition(":")
        values: dict[str, str] = {}
        for option in options.split("&") if options else ():
            key, _, value = option.partition("=")
            if key not in ("threshold", "entailment") or key in values:
                raise InputError(
                    f"'{option}' is not an option of the attributor '{named}'; write options such "
                    "as threshold=0.7 and entailment=2, each once, joined by '&'."
                )
            values[key] = value
        try:
            threshold = float(values["threshold"]) if "threshold" in values else None
            entailment = int(values["entailment"]) if "entailment" in values else None
        except ValueError:
            raise InputError(
                f"The options of the attributor '{text}' must be numbers, such as threshold=0.7 "
                "and entailment=2."
            ) from None
        return cls(kind, model, check_threshold(threshold), entailment)

    def __str__(self) -> str:
        options = []
        if self.entailment is not None:
            options.append(f"entailment={self.entailment}")
        if self.threshold is not None:
            options.append(f"threshold={self.threshold:g}")
        named = f"{self.kind}:{self.model}" if self.model else self.kind
        return f"{named}?{'&'.join(options)}" if options else named
