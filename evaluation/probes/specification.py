"""Experiments on rankers: which collections and models, and how they are asked."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from fairqr.agents.ranking.rankers import Asker, Shown
from fairqr.base.errors import one_line
from fairqr.evaluation.experiments.options import Count, Options, Seed
from fairqr.evaluation.probes.collection import Order

LISTWISE_KIND, PAIRWISE_KIND, LORA_KIND = "llm_listwise", "llm_pairwise", "lora"

_WINDOW = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")


class ProbeSource(BaseModel):
    """A probe collection that an experiment builds, or one that was built.

    Attributes:
        folder: The folder of one that was built; the other values are then empty.
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


def _sources_of(given: Any) -> Any:
    """Read sources that are texts: ``gender=female``, or the folder of one that was built."""

    def read(each: Any) -> Any:
        if not isinstance(each, str):
            return each
        attribute, is_built_here, protected = each.partition("=")
        told = {"attribute": attribute.strip(), "protected": protected.strip()}
        return told if is_built_here else {"folder": each}

    return [*map(read, given)] if isinstance(given, (list, tuple)) else [read(given)]


class Window(BaseModel):
    """The window of a listwise ranker, written ``size/step``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: Annotated[int, Field(ge=2)]
    step: Annotated[int, Field(ge=1)]

    @classmethod
    def parse(cls, text: str) -> Window:
        """Read ``20/10``.

        Raises:
            ValueError: It is no window, or the step is not smaller than the window.
        """
        match = _WINDOW.fullmatch(text)
        if not match or int(match[1]) < 2 or not 1 <= int(match[2]) < int(match[1]):
            raise ValueError(
                f"'{one_line(text)}' is not a window; write its size and its step, such as 20/10, "
                "the step smaller than the size"
            )
        return cls(size=int(match[1]), step=int(match[2]))

    def __str__(self) -> str:
        return f"{self.size}/{self.step}"


class ProbeSettings(BaseModel):
    """How probe collections are built."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    collection: str | None = Field(
        None,
        description="The collection with documents, topics and judgements: a name or a folder.",
    )
    split: str | None = Field(
        None,
        description="Which judgements to use, if the collection has several sets, such as train "
        "or eval.",
    )
    queries: Count | None = Field(
        None,
        description="The most queries of each source; all by default.",
    )
    size: Annotated[int, Field(ge=4, multiple_of=4, strict=True)] = Field(
        200, description="Items per query, a multiple of 4."
    )
    order: Order | None = Field(
        None,
        description="The initial order of the items: shuffled, bm25 or discriminatory. Defaults "
        "to the folder's, or to shuffled.",
    )
    seed: Seed = Field(0, description="The seed of all random draws.")


class ProbeExperiment(ProbeSettings, Options):
    """What all have in common."""

    filled: ClassVar[tuple[str, ...]] = ("sources",)

    sources: Annotated[tuple[ProbeSource, ...], BeforeValidator(_sources_of)] = Field(
        description="The probe collections: an attribute and its protected group each, such as "
        "'gender=female' or 'continent=not Europe', or a folder. What the collection lacks is left "
        "out."
    )
    prompts: dict[str, str] = Field(
        {}, description="The version of a prompt, by its name, such as pairwise=v2."
    )
    length: Count = Field(2000, description="The most characters of an item to show to the model.")

    @model_validator(mode="after")
    def _has_a_collection(self) -> ProbeExperiment:
        if self.collection is None and any(source.folder is None for source in self.sources):
            raise ValueError("a source without a folder needs a collection; name one")
        return self


class ListwiseExperiment(ProbeExperiment):
    """Rankers that put whole lists in order, for askers of either group."""

    filled = ("sources", "rankers", "askers", "windows")

    kind: Literal["llm_listwise"]
    rankers: tuple[str, ...] = Field(
        description="The rankers: a model such as openai:gpt-4o, pairwise:MODEL, monot5, "
        "monobert (also with :MODEL), or initial for the order as given."
    )
    askers: tuple[Asker, ...] = Field(
        ("neutral", "unprotected", "protected"),
        description="Who asks for the lists: neutral, unprotected, protected.",
    )
    windows: tuple[str, ...] = Field(
        ("20/10",),
        description="The windows that a model orders at once, as size/step, such as 20/10.",
    )
    shown: Shown = Field(
        "title",
        description="The part of an item that language models read: title, text or title_text.",
    )
    shown_to_neural: Shown = Field(
        "title_text",
        description="The part of an item that monoT5 and monoBERT read: title, text or title_text.",
    )
    k: Count = Field(20, description="The depth of P@k and nDCG@k.")

    @field_validator("windows")
    @classmethod
    def _are_windows(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(Window.parse(text)) for text in windows)


class PairwiseExperiment(ProbeExperiment):
    """Models that are asked which of two items is more relevant, in both orders."""

    filled = ("sources", "models")

    kind: Literal["llm_pairwise"]
    models: tuple[str, ...] = Field(
        description="The models to ask, such as openai:gpt-4o, local:smollm2-135m or causal:MODEL."
    )
    by: Literal["probabilities", "reply"] = Field(
        "probabilities",
        description="How the answer is read: the probabilities of both labels if the model "
        "gives them, or the reply.",
    )
    pairs: Count = Field(
        50, description="The most pairs of each kind per query; no item is in two of them."
    )
    relevance_pairs: Annotated[int, Field(ge=0, strict=True)] = Field(
        0,
        description="The most pairs per query of a relevant and an irrelevant item of one group, "
        "which show whether the model judges relevance at all.",
    )
    shown: Shown = Field(
        "title", description="The part of an item that models read: title, text or title_text."
    )
    asker: Asker = Field(
        "neutral", description="Who asks for the comparison: neutral, unprotected or protected."
    )


class LoraExperiment(ProbeExperiment):
    """Tuning a causal model by LoRA on balanced pairs, and probing it before and after."""

    kind: Literal["lora"]
    model: str = Field(
        description="The causal model to tune: causal: and a hub id, a folder, a GGUF file or "
        "embedded weights."
    )
    pairs: Count = Field(50, description="The most pairs of each kind per training query.")
    held_out_pairs: Count = Field(50, description="The most pairs of each kind per held-out query.")
    relevance_pairs: Annotated[int, Field(ge=0, strict=True)] = Field(
        10,
        description="The most pairs of a relevant and an irrelevant item per held-out query.",
    )
    train_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.8, description="The share of the queries to train on; the others are held out."
    )
    steps: Count | None = Field(
        None, description="Training steps; by default as many as the epochs need."
    )
    epochs: Count = Field(1, description="How often to train on each pair.")
    batch: Annotated[int, Field(ge=2, multiple_of=2, strict=True)] = Field(
        4, description="Examples per step; even, because both orders of a pair share a batch."
    )
    rank: Count = Field(1, description="The rank of the adapter.")
    alpha: Annotated[float, Field(gt=0)] = Field(
        1.0, description="The adapter is scaled by alpha/rank."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="The dropout on the adapter's input."
    )
    modules: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj"), description="The layers to adapt."
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(
        0.003, description="The learning rate of the first step."
    )
    schedule: Literal["linear", "constant"] = Field(
        "linear",
        description="Whether the learning rate falls to 0 in a line (linear) or stays constant.",
    )
    shown: Shown = Field(
        "title", description="The part of an item that the model reads: title, text or title_text."
    )
