"""Finds what is known of a model: how much its words count, and which prompts suit it.

Profiles ship with fairqr, and the user's own are in the folder ``profiles`` of the data folder.
The user's own win over those that ship, and a full measurement wins over a quick one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml

from fairqr.agents.models.replies import RECORDED
from fairqr.agents.profiles.profile import ModelProfile
from fairqr.base.errors import ConfigError
from fairqr.base.files import write_beside
from fairqr.base.settings import data_dir
from fairqr.base.yaml_file import load_yaml
from fairqr.retrieval.fairness.relevance import EvidenceWeights
from fairqr.retrieval.sources.schema import validated

SHIPPED = Path(__file__).parent / "shipped"

FOR_LARGE_MODELS: Mapping[str, str] = {"topic": "v2", "refine": "v5"}
FOR_SMALL_MODELS: Mapping[str, str] = {"topic": "v1", "refine": "v4"}

UNMEASURED_WEIGHTS = EvidenceWeights(topic=0.125, group=0.125)
"""How much the words of a model count that nobody measured. No measured model that is put in its
place loses more than 1 % of nDCG × AWRF on any collection; with .25 each, SmolLM2-135M loses 1.4 %
on notables."""

UNMEASURED_SHARE = 0.03
"""How much of what a search lacks such a model is expected to bring; compare
:attr:`ModelProfile.share`. With the default least gain, it is asked where a third is lacking."""


PromptVersions = tuple[tuple[str, str], ...]
"""The versions of prompts, sorted by their ids."""


@dataclass(frozen=True, slots=True)
class Trust:
    """How far a search trusts a model.

    Attributes:
        weights: How much its words count.
        share: How much of what a search lacks it is expected to bring.
        measured_on: The names of the collections that this was measured on; empty if nobody
            measured the model with these prompts.
        are_given: Whether the user gave the weights.
        is_in_vain: Whether its words were measured not to count here.
    """

    weights: EvidenceWeights
    share: float
    measured_on: tuple[str, ...] = ()
    are_given: bool = False
    is_in_vain: bool = False


UNMEASURED = Trust(UNMEASURED_WEIGHTS, UNMEASURED_SHARE)
NO_WORDS = Trust(EvidenceWeights(), 0.0)
"""Without a model there are no words."""


class Named(Protocol):
    """A model."""

    @property
    def name(self) -> str:
        """The name for results."""


class Profiles:
    """The profiles of models, read once.

    Args:
        folder: The user's own; defaults to :func:`own_folder`.

    Raises:
        ConfigError: A profile is wrong; the message names its file.
    """

    def __init__(self, folder: Path | None = None) -> None:
        profile_of = {profile.key: profile for profile in _read_folder(SHIPPED)}
        for profile in _read_folder(own_folder() if folder is None else folder):
            earlier = profile_of.get(profile.key)
            is_worse = profile.is_quick and earlier is not None and not earlier.is_quick
            if not is_worse:
                profile_of[profile.key] = profile
        self._profiles = list(profile_of.values())

    def of_model(self, model: str) -> list[ModelProfile]:
        """Return all profiles of a model."""
        return [profile for profile in self._profiles if profile.model == model]

    def prompts_for(self, model: str) -> dict[str, str]:
        """Return the versions of the prompts that suit a model, by id.

        They are those that it was measured to gain most with. Other models get the prompts for
        large ones, unless they run in this process.
        """
        gains = self._gains_of(model)
        if not gains:
            return dict(FOR_SMALL_MODELS if is_small(model) else FOR_LARGE_MODELS)
        common_collections = set.intersection(*map(set, gains.values()))

        def mean_gain(prompts: PromptVersions) -> float:
            """Return the mean over the collections that all were measured on, if there are any."""
            gain_on = gains[prompts]
            compared = [gain_on[name] for name in common_collections or gain_on]
            return sum(compared) / len(compared)

        best: PromptVersions = max(gains, key=mean_gain)
        return dict(best)

    def _gains_of(self, model: str) -> dict[PromptVersions, dict[str, float]]:
        """Return what a model gained with each of its prompts, by collection."""
        gains: dict[PromptVersions, dict[str, float]] = {}
        for profile in self.of_model(model):
            if profile.prompts:
                prompts = tuple(sorted(profile.prompts.items()))
                gains.setdefault(prompts, {})[profile.collection] = profile.gain.value
        return gains

    def trust_in(self, model: str, prompts: Mapping[str, str], corpora: Collection[str]) -> Trust:
        """Return how far to trust a model with these prompts on an index.

        If it was measured on a collection with the documents of this index, that counts. On
        another index, each weight is the lowest of all collections, and passages do not count:
        they help on some collections and harm on others.

        Args:
            model: The name of the model.
            prompts: The versions of its prompts.
            corpora: The names of the index, and the hash of its content if it is known.
        """
        measured = [profile for profile in self.of_model(model) if profile.prompts == dict(prompts)]
        if not measured:
            return UNMEASURED
        for profile in measured:
            if set(profile.corpora) & set(corpora):
                return Trust(profile.weights, profile.share, (profile.collection,))
        return Trust(
            _lowest(profile.weights for profile in measured),
            min(profile.share for profile in measured),
            tuple(profile.collection for profile in measured),
        )


def profiled_name(model: Named) -> str:
    """Return the name that a model is measured by, which tells files of replies apart."""
    return getattr(model, "profiled_as", model.name)


def is_small(model: str) -> bool:
    """Return whether a model gets the prompts for small ones unless it was measured with others."""
    return model.startswith("local:")


def is_hosted(model: str) -> bool:
    """Return whether asking a model sends queries to a server."""
    is_local = model.startswith(("local:", f"{RECORDED}:"))
    return model != "feedback" and not is_local


def _lowest(all_weights: Iterable[EvidenceWeights]) -> EvidenceWeights:
    """Return the lowest of each weight; 0 for passages."""
    dumps = [weights.model_dump() for weights in all_weights]
    lowest = {}
    for kind in dumps[0]:
        lowest[kind] = min(weights[kind] for weights in dumps)
    return EvidenceWeights(**{**lowest, "passage": 0.0})


def own_folder() -> Path:
    """Return the folder of the user's own profiles."""
    return data_dir() / "profiles"


def keep_profile(profile: ModelProfile, folder: Path | None = None) -> Path:
    """Write a profile, in place of an older one of the same key, and return its path."""
    content = profile.model_dump(mode="json")
    text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
    path = (folder or own_folder()) / _file_name(profile)
    write_beside(path, text)
    return path


def _file_name(profile: ModelProfile) -> str:
    """Return a name for people; a hash tells apart what would look alike."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", f"{profile.model}_on_{profile.collection}")
    digest = hashlib.sha256(repr(profile.key).encode()).hexdigest()
    return f"{readable[:80]}-{digest[:8]}.yaml"


def _read_folder(folder: Path) -> list[ModelProfile]:
    """Return the profiles in a folder, in the order of their files."""
    return [_read(path) for path in sorted(folder.glob("*.yaml"))]


def _read(path: Path) -> ModelProfile:
    content = load_yaml(path, "profile", ConfigError)
    return validated(ModelProfile, content, f"The profile {path}", ConfigError)
