"""The re-rankers by name, and how to open them."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.retrieval.rerankers.base import Reranker
from fairqr.retrieval.rerankers.diversification import Mmr, Pm2, Xquad
from fairqr.retrieval.rerankers.fa_ir import FairTopK
from fairqr.retrieval.rerankers.fair import ExposureAwareStep, FairStep
from fairqr.retrieval.rerankers.learning import Deltr, Dlf, TrainedReranker

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

ABOUT = {name: str(it.__doc__).splitlines()[0].rstrip(".") for name, it in RERANKERS.items()}
"""What each re-ranker does and where it comes from, as a phrase for users."""

TRAINED = tuple(name for name, it in RERANKERS.items() if issubclass(it, TrainedReranker))
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
        where, reason = first_problem(error)
        if not where:  # The weights are wrong; the reason is a whole sentence.
            raise InputError(f"{reason}.") from None
        known = reranker.model_fields
        what = f"re-ranker {name} has no option '{one_line(where, 60)}'"
        why = f"it has {', '.join(known) or 'none'}."
        if where in known:
            what = f"option '{where}' of {name} is wrong: {reason}"
            why = f"it is described as: {known[where].description}"
        raise InputError(f"The {what}; {why}") from None
