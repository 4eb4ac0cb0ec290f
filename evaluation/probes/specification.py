"""Experiments on rankers: which collections and models, and how they are asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fairqr.agents.ranking.rankers import Asker, Shown
from fairqr.base.errors import one_line
from fairqr.evaluation.experiments.options import Count, Options, Seed

LISTWISE_KIND, PAIRWISE_KIND, LORA_KIND = "llm_listwise", "llm_pairwise", "lora"

INITIAL = "initial"
"""The ranker that leaves the order as it is: what all others are compared with."""

POINTWISE = ("monot5", "monobert")

Order = Literal["shuffled", "bm25", "discriminatory"]
"""The order in which a ranker sees the items first."""

ASKERS: tuple[Asker, ...] = ("neutral", "unprotected", "protected")
PARTS = "title, text or title_text"

CountOrZero = Annotated[int, Field(ge=0, strict=True)]
MultipleOf4 = Annotated[int, Field(ge=4, multiple_of=4, strict=True)]
Positive = Annotated[float, Field(gt=0)]


def parse_window(text: str) -> tuple[int, int]:
    """Read the window of a listwise ranker, such as ``20/10``: its size and its step.

    Raises:
        ValueError: It is no window, or the step is not smaller than the window.
    """
    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if not match or not 1 <= int(match[2]) < int(match[1]):
        raise ValueError(
            f"'{one_line(text)}' is not a window; write its size and its step, such as 20/10, the "
            "step smaller than the size"
        )
    return int(match[1]), int(match[2])


def parse_ranker(name: str) -> tuple[str, str]:
    """Read the name of a ranker: how it ranks, and the model that it asks or its weights.

    The latter is empty for ``initial`` and for default weights, as in ``monot5``. Names that begin
    with no kind of ranker are those of models, which rank listwise.

    Raises:
        ValueError: A model is missing behind ``pairwise:``, or one stands behind ``initial``.
    """
    kind, colon, model = name.partition(":")
    if kind == INITIAL and colon:
        raise ValueError(f"'{one_line(name)}' is not a ranker; '{INITIAL}' takes no model")
    if kind == "pairwise" and not model:
        raise ValueError("a pairwise ranker needs a model, such as pairwise:openai:gpt-4o")
    return (kind, model) if kind in (INITIAL, "pairwise", *POINTWISE) else ("listwise", name)


def parse_causal(name: str) -> str:
    """Return the model behind ``causal:``.

    Raises:
        ValueError: It is another kind of model.
    """
    kind, _, model = name.partition(":")
    if kind != "causal" or not model:
        raise ValueError(
            f"only a causal model of transformers can be tuned, not '{one_line(name)}'; write it "
            "like causal:smollm2-135m, or causal: and a hub id, a folder or a GGUF file"
        )
    return model


def _readable(read: Callable[[str], object]) -> AfterValidator:
    """Return a validator of texts that a function can read."""

    def checked(text: str) -> str:
        read(text)
        return text

    return AfterValidator(checked)


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

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, given: Any) -> Any:
        """Read a text: ``gender=female``, or the folder of one that was built."""
        if not isinstance(given, str):
            return given
        attribute, is_built_here, protected = given.partition("=")
        named = {"attribute": attribute.strip(), "protected": protected.strip()}
        return named if is_built_here else {"folder": given}

    @model_validator(mode="after")
    def _is_one(self) -> ProbeSource:
        if self.folder is not None and (self.attribute or self.protected or self.words):
            raise ValueError("a folder says all itself; leave the rest out")
        if self.folder is None and not (self.attribute and self.protected):
            raise ValueError("name an attribute and its protected group, or a folder")
        return self


def _listed(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


class ProbeExperiment(Options):
    """What all have in common: which collections, and how they are built and shown."""

    filled: ClassVar[tuple[str, ...]] = ("sources",)

    collection: str | None = Field(
        None,
        description="The collection with documents, topics and judgements: a name or a folder.",
    )
    split: str | None = Field(None, description="Which judgements, such as train or eval.")
    queries: Count | None = Field(None, description="The most queries of each source.")
    size: MultipleOf4 = Field(200, description="Items per query, a multiple of 4.")
    order: Order | None = Field(
        None,
        description="The initial order of the items: shuffled, bm25 or discriminatory. Defaults "
        "to the folder's, or to shuffled.",
    )
    seed: Seed = Field(0, description="The seed of all random draws.")
    sources: Annotated[tuple[ProbeSource, ...], BeforeValidator(_listed)] = Field(
        description="The probe collections: an attribute and its protected group each, such as "
        "'gender=female' or 'continent=not Europe', or a folder. What the collection lacks is left "
        "out."
    )
    prompts: dict[str, str] = Field({}, description="Versions of prompts, such as pairwise=v2.")
    length: Count = Field(2000, description="The most characters of an item to show to the model.")
    shown: Shown = Field("title", description=f"What language models read of an item: {PARTS}.")

    @model_validator(mode="after")
    def _has_a_collection(self) -> ProbeExperiment:
        if self.collection is None and any(source.folder is None for source in self.sources):
            raise ValueError("a source without a folder needs a collection; name one")
        return self


class ListwiseExperiment(ProbeExperiment):
    """Rankers that put whole lists in order, for askers of either group."""

    filled = ("sources", "rankers", "askers", "windows")

    kind: Literal["llm_listwise"]
    rankers: tuple[Annotated[str, _readable(parse_ranker)], ...] = Field(
        description="The rankers: a model such as openai:gpt-4o, pairwise:MODEL, monot5, "
        "monobert (also with :MODEL), or initial for the order as given."
    )
    askers: tuple[Asker, ...] = Field(ASKERS, description=f"Who asks: {', '.join(ASKERS)}.")
    windows: tuple[Annotated[str, _readable(parse_window)], ...] = Field(
        ("20/10",),
        description="The windows that a model orders at once, as size/step, such as 20/10.",
    )
    shown_to_neural: Shown = Field(
        "title_text", description=f"What monoT5 and monoBERT read of an item: {PARTS}."
    )
    k: Count = Field(20, description="The depth of P@k and nDCG@k.")

    def windows_of(self, ranker: str) -> tuple[str, ...]:
        """Return the windows that a ranker works with; one empty name where it has none."""
        return self.windows if parse_ranker(ranker)[0] == "listwise" else ("",)


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
    pairs: Count = Field(50, description="The most pairs of each kind per query.")
    relevance_pairs: CountOrZero = Field(
        0,
        description="The most pairs per query of a relevant and an irrelevant item of one group, "
        "which show whether the model judges relevance at all.",
    )
    asker: Asker = Field("neutral", description=f"Who asks: {', '.join(ASKERS)}.")


class LoraExperiment(ProbeExperiment):
    """Tuning a causal model by LoRA on balanced pairs, and probing it before and after."""

    kind: Literal["lora"]
    model: Annotated[str, _readable(parse_causal)] = Field(
        description="The causal model to tune: causal: and a hub id, a folder, a GGUF file or "
        "embedded weights."
    )
    pairs: Count = Field(50, description="The most pairs of each kind per training query.")
    held_out_pairs: Count = Field(50, description="The most pairs of each kind per held-out query.")
    relevance_pairs: CountOrZero = Field(
        10, description="The most pairs of a relevant and an irrelevant item per held-out query."
    )
    train_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.8, description="The share of the queries to train on; the others are held out."
    )
    steps: Count | None = Field(None, description="Training steps; defaults to all epochs' steps.")
    epochs: Count = Field(1, description="How often to train on each pair.")
    batch: Annotated[int, Field(ge=2, multiple_of=2, strict=True)] = Field(
        4, description="Examples per step; even, because both orders of a pair share a batch."
    )
    rank: Count = Field(1, description="The rank of the adapter.")
    alpha: Positive = Field(1.0, description="The adapter is scaled by alpha/rank.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="Dropout on its input.")
    modules: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj"), description="The layers to adapt."
    )
    learning_rate: Positive = Field(0.003, description="The learning rate of the first step.")
    schedule: Literal["linear", "constant"] = Field(
        "linear", description="How the rate goes on: to 0 in a line (linear), or constant."
    )

    def probing(self, model: str) -> PairwiseExperiment:
        """Return the experiment that is run before tuning and after it, on this model."""
        named = PairwiseExperiment.model_fields.keys() - {"kind", "pairs"}
        own = {"kind": PAIRWISE_KIND, "models": (model,), "pairs": self.held_out_pairs}
        return PairwiseExperiment.model_validate(self.model_dump(include=named) | own)
