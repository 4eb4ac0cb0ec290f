"""The re-rankers by name, and how to open them."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.retrieval.rerankers.base import Reranker
from fairqr.retrieval.rerankers.deltr import Deltr
from fairqr.retrieval.rerankers.diversification import Mmr, Pm2, Xquad
from fairqr.retrieval.rerankers.dlf import Dlf
from fairqr.retrieval.rerankers.fa_ir import FairTopK
from fairqr.retrieval.rerankers.fair import ExposureAwareStep, FairStep
from fairqr.retrieval.rerankers.learning import TrainedReranker

RERANKERS: dict[str, type[Reranker]] = {
    "fair": FairStep,
    "exposure-aware": ExposureAwareStep,
    "mmr": Mmr,
    "xquad": Xquad,
    "pm2": Pm2,
    "fa-ir": FairTopK,
    "deltr": Deltr,
    "dlf": Dlf,
}

ABOUT = {
    name: str(reranker.__doc__).splitlines()[0].rstrip(".") for name, reranker in RERANKERS.items()
}
"""What each re-ranker does and where it comes from, as a phrase for users."""

TRAINED = tuple(
    name for name, reranker in RERANKERS.items() if issubclass(reranker, TrainedReranker)
)
"""The re-rankers that read a file of weights, which ``fairqr train`` writes."""


def open_reranker(name: str, options: Mapping[str, object] | None = None) -> Reranker:
    """Return a re-ranker.

    Args:
        name: One of :data:`RERANKERS`.
        options: The options as a command or a file gives them; text is converted to their types.

    Raises:
        InputError: The re-ranker or an option does not exist, a value is out of range, or the file
            of trained weights is missing or of another kind.
    """
    if name not in RERANKERS:
        raise InputError(
            f"There is no re-ranker '{one_line(name, 60)}'; choose {', '.join(RERANKERS)}."
        )
    reranker = RERANKERS[name]
    try:
        return reranker.model_validate(dict(options or {}))
    except ValidationError as error:
        raise InputError(_problem(name, reranker, error)) from None


def _problem(name: str, reranker: type[Reranker], error: ValidationError) -> str:
    """Return a sentence about what is wrong with the options of a re-ranker."""
    option, reason = first_problem(error)
    if not option:  # The weights are wrong; the reason is a whole sentence.
        return f"{reason}."
    options = reranker.model_fields
    if option in options:
        problem = f"The option '{option}' of {name} is wrong: {reason}"
        return f"{problem}; it is described as: {options[option].description}"
    names = ", ".join(options) or "none"
    return f"The re-ranker {name} has no option '{one_line(option, 60)}'; it has {names}."
