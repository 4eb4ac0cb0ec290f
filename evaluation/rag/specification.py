"""A Fair RAG experiment: a file that names collections, retrievers, generators and α."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, Strict, field_validator, model_validator

from fairqr.evaluation.experiments.options import Count, Options, Seed
from fairqr.retrieval.fairness.exposure import Discount

Policy = Literal["labels", "plackett-luce", "group-aware", "deterministic", "oracle"]
"""What a generator reads: no document and then each alone, which labels the useful ones; samples of
a retriever's ranking at an α; such samples in which groups get their target in expectation; that
one ranking; or useful documents first, in random order otherwise, which no retriever can do."""


class Draw(NamedTuple):
    """A policy under a seed; see :class:`fairqr.evaluation.rag.store.PolicyRecord`."""

    retriever: str
    policy: Policy
    alpha: float | None
    seed: int


LABELS = Draw("", "labels", None, 0)


class FairRagExperiment(Options):
    """Retrievers, generators and stochastic policies, compared on the queries of collections."""

    kind: Literal["fair_rag"]
    collections: tuple[str, ...] = Field(
        (), description="The collections: names, folders of LaMP, or JSON Lines files."
    )
    task: str | None = Field(
        None,
        description="The task of the collections, such as LaMP-5, if their files do not name it; "
        "for questions of your own, what judges answers: rouge-l, rouge-1 or names.",
    )
    queries: Count = Field(
        1000, description="The most queries of each collection, those that are dropped included."
    )
    pool: Count | None = Field(
        None, description="The most documents of each query's pool; all by default."
    )
    retrievers: tuple[str, ...] = Field(
        ("bm25",),
        description="bm25, bm25okapi (that of LaMP and of the paper), splade, contriever, dense; "
        "the last three also with :MODEL.",
    )
    generators: tuple[str, ...] = Field(
        (),
        description="The models that answer, such as openai:gpt-4o or "
        "seq2seq:google/flan-t5-small; without any, only rankings are measured, on labels that "
        "are imported or judged.",
    )
    attributor: str = Field(
        "overlap", description="Judges which documents an answer used; none leaves that out."
    )
    alphas: tuple[Annotated[float, Strict(), Field(ge=0, le=1000)], ...] = Field(
        (1.0, 2.0, 4.0, 8.0),
        description="The exponents: 0 makes all rankings equally likely; more is less random.",
    )
    group_aware: str | None = Field(
        None, description="An attribute; one more policy at each α gives its groups their shares."
    )
    form: Literal["logits", "worths"] = Field(
        "logits", description="How scores become a Plackett–Luce distribution: logits or worths."
    )
    samples: Count = Field(100, description="How many rankings to draw from each policy.")
    generated: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        None,
        description="How many samples get answers (default: all); 0 measures only rankings. "
        "Exposure counts all samples.",
    )
    input_tokens: Count | None = Field(
        None, description="How many tokens a prompt may have; the default depends on the model."
    )
    k: Count = Field(5, description="How many documents the generator reads.")
    browsing: str | None = Field(
        None,
        description="How the attention of a reader falls over these, such as log2 or rbp(0.8), in "
        "all measures of exposure; by default the generator reads them all alike (top_k).",
    )
    seeds: tuple[Seed, ...] = Field((0,), description="The seeds of the sampling; each repeats it.")
    prompts: dict[str, str] = Field(
        {}, description="The version of a prompt, by its name, such as lamp5=v2."
    )
    rating_labels: Literal["accuracy", "error"] = Field(
        "accuracy",
        description="By what documents of LaMP-3 are useful: accuracy of the rating, as the "
        "paper's code has it, or 4 − |error|, as its text has it, which answers are judged by.",
    )
    drop_duplicates: bool = Field(
        True, description="Leave out documents of LaMP that are equal to an earlier one of a pool."
    )
    drop_answers: bool = Field(
        True, description="Leave out documents of LaMP that are the question and its answer."
    )
    min_useful: Count = Field(2, description="Drop queries with fewer useful documents.")

    @field_validator("browsing")
    @classmethod
    def _is_a_discount(cls, browsing: str | None) -> str | None:
        return None if browsing is None else str(Discount.parse(browsing))

    @model_validator(mode="after")
    def _groups_are_read_alike(self) -> Self:
        if self.browsing is not None and self.group_aware is not None:
            raise ValueError("group_aware aims at readers without a browsing model; leave one out")
        return self

    @property
    def reader(self) -> Discount:
        """The attention that each rank gets; 0 beyond the k documents that are read."""
        return Discount("top_k", self.k) if self.browsing is None else Discount.parse(self.browsing)

    @property
    def answered(self) -> int:
        """From how many samples of each policy answers are generated."""
        if not self.generators:
            return 0
        return self.samples if self.generated is None else min(self.samples, self.generated)

    @property
    def labellers(self) -> tuple[str, ...]:
        """Whom documents are useful to: the generators, or an empty name for nobody."""
        return self.generators or ("",)

    @property
    def random(self) -> tuple[Policy, ...]:
        """The policies that have an α."""
        return ("plackett-luce", "group-aware") if self.group_aware else ("plackett-luce",)

    @property
    def draws(self) -> list[Draw]:
        """All policies that draw: each retriever as it is and at every α, and the oracle.

        The deterministic ranking has no chance in it, and stands under every seed, so that the
        policies of a seed can be held against it.
        """
        draws: list[Draw] = []
        for seed in self.seeds:
            for retriever in self.retrievers:
                draws.append(Draw(retriever, "deterministic", None, seed))
                for policy in self.random:
                    draws += [Draw(retriever, policy, alpha, seed) for alpha in self.alphas]
            draws.append(Draw("", "oracle", None, seed))
        return draws
