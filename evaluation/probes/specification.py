"""What the experiments on rankers are: which collections and models, and how they are asked."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fairqr.agents.ranking.askers import Asker
from fairqr.agents.ranking.base import Shown
from fairqr.base.errors import one_line
from fairqr.evaluation.probes.collection import Order

__all__ = [
    "LISTWISE_KIND",
    "LORA_KIND",
    "PAIRWISE_KIND",
    "ListwiseExperiment",
    "LoraExperiment",
    "PairwiseExperiment",
    "ProbeExperiment",
    "ProbeSource",
    "Window",
]

LISTWISE_KIND, PAIRWISE_KIND, LORA_KIND = "llm_listwise", "llm_pairwise", "lora"

_Count = Annotated[int, Field(ge=1, strict=True)]
_Seed = Annotated[int, Field(ge=0, strict=True)]
_WINDOW = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")


class ProbeSource(BaseModel):
    """A probe collection that an experiment builds, or one that was built.

    Attributes:
        folder: Of one that was built; nothing else is said then.
        attribute: Of the collection's schema.
        protected: Groups, or ``not`` and groups: ``female``, ``not Europe``.
        words: What sensitive instructions call the protected group and the others, where the names
            of the groups will not do.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str | None = None
    attribute: str | None = None
    protected: str | None = None
    words: tuple[str, str] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> ProbeSource:
        if self.folder is not None:
            if self.attribute or self.protected or self.words:
                raise ValueError("a folder says all itself; leave the rest out")
        elif not self.attribute or not self.protected:
            raise ValueError("name an attribute and its protected group, or a folder")
        return self


class Window(BaseModel):
    """The window of a listwise ranker, written ``size/step``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: Annotated[int, Field(ge=2)]
    step: Annotated[int, Field(ge=1)]

    @classmethod
    def parse(cls, text: str) -> Window:
        """Read ``20/10``.

        Raises:
            ValueError: It is none, or the step is not smaller than the window.
        """
        match = _WINDOW.fullmatch(text)
        if not match or int(match[1]) < 2 or not 1 <= int(match[2]) < int(match[1]):
            raise ValueError(
                f"'{one_line(text)}' is no window; write its size and its step, such as 20/10, "
                "the step smaller than the size"
            )
        return cls(size=int(match[1]), step=int(match[2]))

    def __str__(self) -> str:
        return f"{self.size}/{self.step}"


class ProbeExperiment(BaseModel):
    """What all have in common.

    Attributes:
        title: Of the report.
        about: What is asked, for the report.
        collection: Documents, topics and judgements, as ``find_collection`` takes it.
        split: Of the judgements, where there are several.
        sources: The probe collections.
        queries: At most so many of the first queries of each; all where None.
        size: Items of a query.
        order: Initial; where None, that of a folder, and ``shuffled`` of what is built anew.
        seed: Of all draws.
        prompts: The version of a prompt by its id, where it is not the default one.
        length: At most so many characters of an item are shown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    about: str = ""
    collection: str | None = None
    split: str | None = None
    sources: tuple[ProbeSource, ...]
    queries: _Count | None = None
    size: _Count = 200
    order: Order | None = None
    seed: _Seed = 0
    prompts: dict[str, str] = {}
    length: _Count = 2000

    @field_validator("sources")
    @classmethod
    def _are_some(cls, sources: tuple[ProbeSource, ...]) -> tuple[ProbeSource, ...]:
        if not sources:
            raise ValueError("the list of sources is empty; name at least one")
        if len(set(sources)) < len(sources):
            raise ValueError("one of the sources is named twice; name each once")
        return sources

    @model_validator(mode="after")
    def _has_a_collection(self) -> ProbeExperiment:
        if self.collection is None and any(source.folder is None for source in self.sources):
            raise ValueError("a source without a folder needs a collection; name one")
        return self


class ListwiseExperiment(ProbeExperiment):
    """Rankers that put whole lists in order, for askers of either group.

    Attributes:
        kind: Tells it from other experiments.
        rankers: A model's name, e.g. ``openai:gpt-4o``, is asked listwise; ``monot5``, ``monobert``
            (with ``:MODEL`` if it is not the default one), ``pairwise:MODEL``, and ``initial``, the
            order as it is given.
        askers: For whom.
        windows: Of listwise rankers.
        shown: What language models read.
        shown_to_neural: What monoT5 and monoBERT read.
        k: Depth of P@k and nDCG@k.
    """

    kind: Literal["llm_listwise"]
    rankers: tuple[str, ...]
    askers: tuple[Asker, ...] = ("neutral", "unprotected", "protected")
    windows: tuple[str, ...] = ("20/10",)
    shown: Shown = "title"
    shown_to_neural: Shown = "title_text"
    k: _Count = 20

    @field_validator("windows")
    @classmethod
    def _are_windows(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(Window.parse(text)) for text in windows)

    @model_validator(mode="after")
    def _is_whole(self) -> ListwiseExperiment:
        _check_lists(rankers=self.rankers, askers=self.askers, windows=self.windows)
        return self


class PairwiseExperiment(ProbeExperiment):
    """Models that are asked which of two items is more relevant, in both orders.

    Attributes:
        kind: Tells it from other experiments.
        models: As the command ``probe pairwise`` takes them.
        by: Weigh the ``probabilities`` of the two labels, where the model tells them, else read its
            ``reply``.
        pairs: At most so many of each kind a query; no item is in two pairs of a query.
        relevance_pairs: So many pairs of a relevant and an irrelevant item of the same group a
            query, to see how well the model judges relevance; 0 leaves that out.
        shown: What models read.
        asker: For whom.
    """

    kind: Literal["llm_pairwise"]
    models: tuple[str, ...]
    by: Literal["probabilities", "reply"] = "probabilities"
    pairs: _Count = 50
    relevance_pairs: Annotated[int, Field(ge=0, strict=True)] = 0
    shown: Shown = "title"
    asker: Asker = "neutral"

    @model_validator(mode="after")
    def _is_whole(self) -> PairwiseExperiment:
        _check_lists(models=self.models)
        return self


class LoraExperiment(ProbeExperiment):
    """Tuning a causal model by LoRA on balanced pairs, and probing it before and after.

    Attributes:
        kind: Tells it from other experiments.
        model: A causal model of transformers: ``causal:`` and a hub id, a folder or a GGUF file.
        pairs: At most so many of each kind a training query.
        held_out_pairs: At most so many of each kind a held-out query.
        relevance_pairs: The same, of a relevant and an irrelevant item of one group.
        train_share: The share of the queries to train on; the others are held out.
        steps: Of training; enough for ``epochs`` where None.
        epochs: How often each pair is trained on.
        batch: Examples a step; even, since both orders of a pair stand in one batch.
        rank, alpha, dropout, modules, learning_rate: Of LoRA.
        schedule: The learning rate falls to 0 in a line, or stays as it is (``constant``).
        shown: What the model reads.
    """

    kind: Literal["lora"]
    model: str
    pairs: _Count = 50
    held_out_pairs: _Count = 50
    relevance_pairs: Annotated[int, Field(ge=0, strict=True)] = 10
    train_share: Annotated[float, Field(gt=0, lt=1)] = 0.8
    steps: _Count | None = None
    epochs: _Count = 1
    batch: Annotated[int, Field(ge=2, multiple_of=2, strict=True)] = 4
    rank: _Count = 1
    alpha: Annotated[float, Field(gt=0)] = 1.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    learning_rate: Annotated[float, Field(gt=0)] = 0.003
    schedule: Literal["linear", "constant"] = "linear"
    shown: Shown = "title"


def _check_lists(**lists: tuple[str, ...]) -> None:
    for name, values in lists.items():
        if not values:
            raise ValueError(f"the list of {name} is empty; name at least one")
        if len(set(values)) < len(values):
            raise ValueError(f"one of the {name} is named twice; name each once")
        for value in values:
            if not value.strip() or not value.isprintable():
                raise ValueError(f"'{one_line(value)}' is no name")
