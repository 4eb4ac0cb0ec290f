"""A Fair RAG experiment: a file that names collections, retrievers, generators and α."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, Strict, field_validator, model_validator

from fairqr.base.errors import one_line
from fairqr.evaluation.experiments.options import Count, Options, Seed

Form = Literal["logits", "worths"]
"""How scores become a Plackett–Luce distribution; see :mod:`fairqr.retrieval.sampling`."""

NO_ATTRIBUTOR = "none"
"""Attribution is left out."""

_Alpha = Annotated[float, Strict()]

_RETRIEVER = re.compile(r"bm25|(?:splade|contriever|dense)(?::.+)?")


class FairRagExperiment(Options):
    """Retrievers, generators and stochastic policies, compared on the queries of collections."""

    filled = ("retrievers", "generators", "alphas", "seeds")
    distinct = ("collections",)

    kind: Literal["fair_rag"]
    collections: tuple[str, ...] = Field(
        (), description="The collections: names, folders of LaMP, or JSON Lines files."
    )
    task: str | None = Field(
        None,
        description="The task of the collections, such as LaMP-5, if their files do not name it.",
    )
    queries: Count = Field(
        1000,
        description="The most queries of each collection, before those with too few useful "
        "documents are dropped.",
    )
    pool: Count | None = Field(
        None,
        description="The most documents of each query's pool; all by default.",
    )
    retrievers: tuple[str, ...] = Field(
        ("bm25",),
        description="The retrievers: bm25, splade, contriever or dense; the last three also with "
        ":MODEL.",
    )
    generators: tuple[str, ...] = Field(
        description="The models that answer, such as openai:gpt-4o or seq2seq:google/flan-t5-small."
    )
    attributor: str = Field(
        "overlap", description="Judges which documents an answer used; none leaves that out."
    )
    hypothesis: Literal["raw", "task"] = Field(
        "raw",
        description="The text that the attributor judges: the answer as it is (raw, as "
        "in the paper), or the sentence that the task makes of it (task).",
    )
    alphas: tuple[_Alpha, ...] = Field(
        (1.0, 2.0, 4.0, 8.0),
        description="The exponents of the stochastic policies: 0 draws uniformly, and a larger "
        "one comes closer to the deterministic ranking.",
    )
    form: Form = Field(
        "logits", description="How scores become a Plackett–Luce distribution: logits or worths."
    )
    samples: Count = Field(100, description="How many rankings to draw from each policy.")
    generated: Count | None = Field(
        None,
        description="How many samples get answers; all by default. Exposure is measured on "
        "all samples.",
    )
    k: Count = Field(5, description="How many documents the generator reads.")
    seeds: tuple[Seed, ...] = Field((0,), description="The seeds of the sampling; each repeats it.")
    prompts: dict[str, str] = Field(
        {}, description="The version of a prompt, by its name, such as lamp5=v2."
    )
    min_useful: Count = Field(2, description="Drop queries with fewer useful documents.")

    @field_validator("retrievers")
    @classmethod
    def _are_retrievers(cls, retrievers: tuple[str, ...]) -> tuple[str, ...]:
        for name in retrievers:
            if not _RETRIEVER.fullmatch(name):
                raise ValueError(
                    f"there is no retriever '{one_line(name)}'; write bm25, splade, contriever or "
                    "dense, the last three perhaps with :MODEL"
                )
        return retrievers

    @field_validator("alphas")
    @classmethod
    def _are_exponents(cls, alphas: tuple[float, ...]) -> tuple[float, ...]:
        for alpha in alphas:
            if not 0 <= alpha <= 1000:
                raise ValueError(f"α is {alpha:g}; give numbers from 0 to 1000")
        return alphas

    @model_validator(mode="after")
    def _is_whole(self) -> FairRagExperiment:
        if not self.attributor.strip() or not self.attributor.isprintable():
            raise ValueError(f"'{one_line(self.attributor)}' is not a name")
        if self.generated is not None and self.generated > self.samples:
            raise ValueError(
                f"there are only {self.samples} samples to answer from, not {self.generated}; "
                "lower 'generated', or raise 'samples'"
            )
        return self

    @property
    def answered(self) -> int:
        """From how many samples of each policy answers are generated."""
        return self.samples if self.generated is None else self.generated
