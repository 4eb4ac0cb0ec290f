"""Experiments on rankers: which collections and models, and how they are asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from fairqr.agents.ranking.rankers import ENDPOINT, POINTWISE, Persona, Shown
from fairqr.agents.tuning import LoraOptions, Winners
from fairqr.base.errors import one_line
from fairqr.evaluation.experiments.options import Count, Options, Seed

LISTWISE_KIND = "llm_listwise"
PAIRWISE_KIND = "llm_pairwise"
LORA_KIND = "lora"

INITIAL = "initial"
"""The ranker that leaves the order as it is: what all others are compared with."""

CountOrZero = Annotated[int, Field(ge=0, strict=True)]

MIXES: dict[str, tuple[int, ...]] = {"balanced": (1, 1, 1, 1), "paper": (1, 1, 7, 7)}
"""The parts of a list, in the order of ``CELLS`` of the probe collections.

Wang et al. 2024 do not publish theirs. They print a P@20 of .12 to .14 for language models, and .12
to .21 for all rankers of neutral queries, so about one item in eight is relevant if the models are
little better than chance. Their highest exposure ratio by location, 1.504, needs two groups of
about the same size.
"""


def parse_cells(text: str) -> tuple[int, ...]:
    """Read the mix of a list: a name of :data:`MIXES`, or four parts such as ``1:1:7:7``.

    Raises:
        ValueError: It is neither, or all parts are 0.
    """
    if text in MIXES:
        return MIXES[text]
    match = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4}):([0-9]{1,4}):([0-9]{1,4})", text)
    parts = tuple(map(int, match.groups())) if match else ()
    if not any(parts):
        raise ValueError(
            f"'{one_line(text)}' is not a mix of items; write {', '.join(MIXES)} or the parts of "
            "relevant unprotected, relevant protected, irrelevant unprotected and irrelevant "
            "protected items, such as 1:1:7:7"
        )
    return parts


def parse_window(text: str) -> tuple[int, int]:
    """Read the window of a listwise ranker, such as ``20/10``: its size and its step.

    Raises:
        ValueError: It is not a window, or the step is not smaller than the window.
    """
    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if match:
        size = int(match[1])
        step = int(match[2])
        if 1 <= step < size:
            return size, step
    raise ValueError(
        f"'{one_line(text)}' is not a window; write its size and its step, such as 20/10, the "
        "step smaller than the size"
    )


def parse_ranker(name: str) -> tuple[str, str]:
    """Read the name of a ranker: how it ranks, and the model that it asks or its weights.

    The latter is empty for ``initial`` and for default weights, as in ``monot5``; of an endpoint it
    is the address. Names that begin with no kind of ranker are those of models, which rank
    listwise.
    """
    kind, _, model = name.partition(":")
    is_kind = name == INITIAL or kind in ("pairwise", ENDPOINT, *POINTWISE)
    return (kind, model) if is_kind else ("listwise", name)


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


class ProbeExperiment(Options):
    """What all have in common: which collection and groups, and how lists are drawn and shown."""

    collection: str = Field(
        "notables",
        description="The collection with documents, topics and judgements: a name or a folder.",
    )
    split: str | None = Field(None, description="Which judgements, such as train or eval.")
    queries: Count | None = Field(None, description="The most queries for each attribute.")
    topics: Literal["first", "drawn"] = Field(
        "first",
        description="Which topics they are if there are more: the first, or drawn by the seed.",
    )
    size: Annotated[int, Field(ge=4, multiple_of=4, strict=True)] = Field(
        200, description="Items per query, a multiple of 4."
    )
    cells: Annotated[str, _readable(parse_cells)] = Field(
        "balanced",
        description=(
            "The parts of relevant unprotected, relevant protected, irrelevant unprotected and "
            "irrelevant protected items in a list: balanced (a quarter each), paper (one relevant "
            "item in eight), or such as 1:1:2:2."
        ),
    )
    order: Literal["shuffled", "discriminatory"] = Field(
        "shuffled", description="The initial order of the items: shuffled or discriminatory."
    )
    seed: Seed = Field(0, description="The seed of all random draws.")
    attribute: str | None = Field(
        None, description="An attribute of the collection's schema, such as gender."
    )
    protected: str | None = Field(
        None,
        description=(
            "The protected group: female, not Europe, continent=Africa,Asia, or 'female vs male'. "
            "Defaults to the first group of the attribute."
        ),
    )
    words: tuple[str, str] | None = Field(
        None, description="What to call the two groups, such as women,men."
    )
    sources: tuple[str, ...] = Field(
        (),
        description=(
            "Several attributes with their protected groups, such as 'gender=female' and "
            "'continent=not Europe', where no attribute is named. What the collection lacks is "
            "left out. Defaults to each attribute of the collection with its first group."
        ),
    )
    prompts: dict[str, str] = Field({}, description="Versions of prompts, such as pairwise=v2.")
    length: Count = Field(2000, description="The most characters of an item to show to the model.")
    shown: Shown = Field(
        "title", description="What language models read of an item: title, text or title_text."
    )

    @model_validator(mode="after")
    def _names_the_groups(self) -> ProbeExperiment:
        if self.words and not (self.attribute or self.protected):
            raise ValueError("which groups these words are for is missing; add protected=GROUP")
        return self

    @property
    def cell_sizes(self) -> tuple[int, ...]:
        """How many items of each cell a full list has; they sum to ``size``.

        The largest remainders are rounded up; of equal ones, those of the first cells.
        """
        parts = parse_cells(self.cells)
        total = sum(parts)
        sizes = [self.size * part // total for part in parts]
        remainders = [self.size * part % total for part in parts]
        by_remainder = sorted(range(len(parts)), key=remainders.__getitem__, reverse=True)
        for cell in by_remainder[: self.size - sum(sizes)]:
            sizes[cell] += 1
        return tuple(sizes)


class ListwiseExperiment(ProbeExperiment):
    """Rankers that put whole lists in order, for personas of either group."""

    kind: Literal["llm_listwise"]
    rankers: tuple[str, ...] = Field(
        description=(
            "The rankers: a model such as openai:gpt-4o, pairwise:MODEL, monot5, monobert (also "
            "with :MODEL), rerank:URL or rerank:MODEL@URL for an endpoint that re-ranks, or "
            "initial for the order as given."
        )
    )
    personas: tuple[Persona, ...] = Field(
        ("neutral", "unprotected", "protected"),
        description="Who asks: neutral, unprotected, protected.",
    )
    windows: tuple[Annotated[str, _readable(parse_window)], ...] = Field(
        ("20/10",),
        description="The windows that a model orders at once, as size/step, such as 20/10.",
    )
    shown_to_neural: Shown = Field(
        "title_text",
        description=(
            "What monoT5, monoBERT and endpoints read of an item: title, text or title_text."
        ),
    )
    k: Count = Field(20, description="The depth of P@k and nDCG@k.")

    def windows_of(self, ranker: str) -> tuple[str, ...]:
        """Return the windows that a ranker works with; one empty name where it has none."""
        return self.windows if parse_ranker(ranker)[0] == "listwise" else ("",)


class PairwiseExperiment(ProbeExperiment):
    """Models that are asked which of two items is more relevant, in both orders."""

    kind: Literal["llm_pairwise"]
    models: tuple[str, ...] = Field(
        description="The models to ask, such as openai:gpt-4o, local:smollm2-135m or causal:MODEL."
    )
    by: Literal["probabilities", "reply"] = Field(
        "probabilities",
        description=(
            "How the answer is read: the probabilities of both labels if the model gives them, or "
            "the reply."
        ),
    )
    pairs: Count = Field(50, description="The most pairs of each kind per query.")
    relevance_pairs: CountOrZero = Field(
        0,
        description=(
            "The most pairs per query of a relevant and an irrelevant item of one group, which "
            "show whether the model judges relevance at all."
        ),
    )
    persona: Persona = Field("neutral", description="Who asks: neutral, unprotected or protected.")


class LoraExperiment(LoraOptions, ProbeExperiment):
    """Tuning a causal model by LoRA on balanced pairs, and probing it before and after."""

    kind: Literal["lora"]
    model: Annotated[str, _readable(parse_causal)] = Field(
        description=(
            "The causal model to tune: causal: and a hub id, a folder, a GGUF file or embedded "
            "weights."
        )
    )
    pairs: Count = Field(
        50,
        description=(
            "The most pairs of each kind per training query, from the cross product of both sides."
        ),
    )
    winners: Winners = Field(
        "pair",
        description=(
            "Who wins: one item of each pair in both orders (pair), or an item drawn for each "
            "order (question), so that both orders may have different winners."
        ),
    )
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

    def probing(self, model: str) -> PairwiseExperiment:
        """Return the experiment that is run before tuning and after it, on this model."""
        names = PairwiseExperiment.model_fields.keys() - {"kind", "pairs"}
        common = self.model_dump(include=names)
        further = {"kind": PAIRWISE_KIND, "models": (model,), "pairs": self.held_out_pairs}
        return PairwiseExperiment.model_validate(common | further)
