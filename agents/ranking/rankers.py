"""Opens rankers by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fairqr.agents.ranking.item_ranker import ItemRanker, Shown
from fairqr.base.errors import InputError, ModelUnavailableError, one_line

if TYPE_CHECKING:
    from fairqr.agents.ranking.model import RankingModel
    from fairqr.prompts.library import PromptLibrary

RankerName = Literal["listwise", "pairwise", "monot5", "monobert"]

RANKERS: Mapping[RankerName, str] = {
    "listwise": "a language model that sorts overlapping windows, from the last to the first "
    "(RankGPT, Sun et al. 2023)",
    "pairwise": "a language model that compares documents two at a time, in both orders "
    "(PRP, Qin et al. 2024)",
    "monot5": "a T5 that says whether a document is relevant (Nogueira et al. 2020)",
    "monobert": "a BERT that classifies a document as relevant (Nogueira & Cho 2019)",
}


@dataclass(frozen=True, slots=True)
class RankerOptions:
    """How a ranker works; each kind uses the options that it needs.

    Attributes:
        shown: What it reads of an item; defaults to titles and texts.
        length: The most characters of an item that are shown.
        window, step: The windows of the listwise ranker.
        context: How many tokens the model reads and writes at once, if known.
        strategy: Which pairs the pairwise ranker compares: all, those of a sort, or sliding passes.
        passes: How many passes the sliding strategy makes.
        by: How the pairwise ranker asks.
        concurrency: How many comparisons run at the same time.
        weights: The hub id or folder of monoT5 or monoBERT.
        versions: The versions of prompts, by id.
    """

    shown: Shown | None = None
    length: int = 2000
    window: int = 20
    step: int = 10
    context: int | None = None
    strategy: Literal["all", "sorting", "sliding"] = "sorting"
    passes: int = 10
    by: Literal["probabilities", "reply"] = "probabilities"
    concurrency: int = 8
    weights: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def open_ranker(
    name: str,
    model: RankingModel | None = None,
    prompts: PromptLibrary | None = None,
    options: RankerOptions = RankerOptions(),
) -> ItemRanker:
    """Return a ranker.

    Args:
        name: One of :data:`RANKERS`.
        model: The language model to ask; monoT5 and monoBERT need none.
        prompts: The library of prompts.
        options: How the ranker works.

    Raises:
        InputError: The ranker does not exist, or an option is out of range.
        ModelUnavailableError: The ranker needs a language model, but none is given.
        PromptError: The prompt does not exist.
    """
    if name not in RANKERS:
        raise InputError(f"There is no ranker '{one_line(name)}'; choose {', '.join(RANKERS)}.")
    if name in ("monot5", "monobert"):
        from fairqr.agents.ranking.pointwise import open_pointwise

        return open_pointwise(name, options)
    if model is None:
        raise ModelUnavailableError(
            f"The ranker {name} asks a language model, but none is given; name one, such as "
            "openai:gpt-4o or local:smollm2-135m."
        )
    from fairqr.prompts.library import PromptLibrary

    prompts = prompts or PromptLibrary()
    prompt = prompts.get(name, options.versions.get(name))
    if name == "listwise":
        from fairqr.agents.ranking.listwise import ListwiseRanker

        return ListwiseRanker(
            model,
            prompt,
            window=options.window,
            step=options.step,
            shown=options.shown or "title_text",
            length=options.length,
            context=options.context,
        )
    from fairqr.agents.ranking.pairwise import PairwiseJudge
    from fairqr.agents.ranking.pairwise_ranker import PairwiseRanker

    judge = PairwiseJudge(
        model, prompt, by=options.by, shown=options.shown or "title_text", length=options.length
    )
    return PairwiseRanker(
        judge, strategy=options.strategy, passes=options.passes, concurrency=options.concurrency
    )
