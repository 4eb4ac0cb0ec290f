"""The names of rankers in an experiment, and opening what they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.ranking.rankers import (
    Cost,
    ItemRanker,
    ItemRanking,
    RankerOptions,
    RankItem,
    open_ranker,
)
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.probes.specification import ListwiseExperiment, Window
from fairqr.prompts.library import PromptLibrary

INITIAL = "initial"
"""The order as it is given."""

NO_WINDOW = "20/10"
"""What stands in the options of a ranker that heeds no window."""

Kind = Literal["initial", "monot5", "monobert", "pairwise", "listwise"]


@dataclass(frozen=True, slots=True)
class NamedRanker:
    """What the name of a ranker in an experiment means.

    Attributes:
        kind: How it ranks.
        model: What is asked, or the weights of monoT5 and monoBERT; empty for the default ones.
    """

    kind: Kind
    model: str = ""

    @property
    def asks_a_model(self) -> bool:
        """Whether a language model is asked by a prompt."""
        return self.kind in ("pairwise", "listwise")


class Initial:
    """Ranks nothing: what all others are compared with."""

    name = INITIAL

    async def start(self) -> None:
        """Do nothing."""

    def cost(self, query: str, items: Sequence[RankItem], group: str = "") -> Cost:
        """Return nothing."""
        return Cost()

    async def rank(
        self, query: str, items: Sequence[RankItem], group: str = "", deadline: float | None = None
    ) -> ItemRanking:
        """Return the order that is given."""
        return ItemRanking(tuple(range(len(items))))


def parse_ranker(name: str) -> NamedRanker:
    """Read the name of a ranker: ``initial``, ``monot5``, ``pairwise:MODEL``, or a model's.

    Raises:
        InputError: A model is missing behind ``pairwise:``, or one stands behind ``initial``.
    """
    kind, colon, model = name.partition(":")
    if kind == INITIAL and colon:
        raise InputError(f"'{one_line(name)}' is not a ranker; '{INITIAL}' takes no model.")
    if kind == "pairwise" and not model:
        raise InputError("A pairwise ranker needs a model, such as pairwise:openai:gpt-4o.")
    if kind in get_args(Kind) and kind != "listwise":
        return NamedRanker(cast("Kind", kind), model)
    return NamedRanker("listwise", name)


def windows_of(experiment: ListwiseExperiment, ranker: str) -> tuple[str, ...]:
    """Return the windows that a ranker works with; one empty name where it has none."""
    return experiment.windows if parse_ranker(ranker).kind == "listwise" else ("",)


def open_probe_ranker(
    name: str,
    window: str,
    experiment: ListwiseExperiment,
    prompts: PromptLibrary,
    model: LanguageModel | None,
    concurrency: int = 8,
) -> ItemRanker:
    """Open a ranker of an experiment; nothing is loaded yet.

    Args:
        name: As the experiment writes it.
        window: One of :func:`windows_of`.
        experiment: How it is asked.
        prompts: Where prompts come from.
        model: The language model that is asked, if one is.
        concurrency: How many comparisons of a pairwise ranker may be under way at the same time.

    Raises:
        InputError: It is no ranker, or an option is out of its range.
        PromptError: There is no such prompt.
    """
    named = parse_ranker(name)
    if named.kind == "initial":
        return Initial()
    size = Window.parse(window or NO_WINDOW)
    options = RankerOptions(
        shown=experiment.shown if named.asks_a_model else experiment.shown_to_neural,
        length=experiment.length,
        window=size.size,
        step=size.step,
        versions=experiment.prompts,
        weights=None if named.asks_a_model else named.model or None,
        concurrency=concurrency,
    )
    return open_ranker(named.kind, model, prompts, options)
