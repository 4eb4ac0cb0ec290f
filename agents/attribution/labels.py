"""Which output of a classifier is entailment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairqr.base.errors import ModelUnavailableError

__all__ = ["entailment_index"]

_ENTAILMENT = frozenset({"entailment", "entailed", "entails", "entail"})


def entailment_index(labels: Mapping[int, str], name: str, chosen: int | None = None) -> int:
    """Return the index of entailment.

    Models disagree about the order, so only the names in the model's own configuration count, in
    any case: one of ``entailment``, ``entailed``, ``entails`` and ``entail``, alone.

    Args:
        labels: The configuration's ``id2label``.
        name: Of the attributor, for the message.
        chosen: What the user says it is.

    Raises:
        ModelUnavailableError: The labels do not say it, or the model has no such output, or only
            one.
    """
    shown = ", ".join(f"{index}={labels[index]}" for index in sorted(labels)[:8]) or "none"
    if len(labels) < 2:
        raise ModelUnavailableError(
            f"The model of {name} is no classifier of entailment: its labels are {shown}; "
            "choose one with at least two."
        )
    if chosen is not None:
        if chosen not in labels:
            raise ModelUnavailableError(
                f"The model of {name} has no output {chosen}; its labels are {shown}."
            )
        return chosen
    found = [i for i, label in labels.items() if re.sub(r"[\W_]", "", label.lower()) in _ENTAILMENT]
    if len(found) != 1:
        raise ModelUnavailableError(
            f"The model of {name} does not say which output is entailment: its labels are {shown}; "
            f"name the right one, such as '{name.partition('?')[0]}?entailment=2'."
        )
    return found[0]
