"""Labelled pairs, on which an attributor is checked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, StrictBool, ValidationError

from fairqr.agents.attribution.verdicts import Pair
from fairqr.base.errors import InputError, first_problem
from fairqr.base.files import write_beside
from fairqr.retrieval.sources.documents import numbered_lines


class LabelledPair(BaseModel):
    """A pair with a label.

    Attributes:
        premise: The document.
        hypothesis: The answer.
        entailed: Whether the answer must be true if the document is.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    premise: str
    hypothesis: str
    entailed: StrictBool

    @property
    def pair(self) -> Pair:
        """The pair without the label."""
        return Pair(self.premise, self.hypothesis)


def read_pairs(path: Path) -> list[LabelledPair]:
    """Read JSON Lines of objects with ``premise``, ``hypothesis`` and ``entailed``.

    Raises:
        InputError: The file cannot be read or has no pairs, or a line is not a pair; the message
            names the line.
    """
    found: list[LabelledPair] = []
    for number, line in numbered_lines(path):
        try:
            found.append(LabelledPair.model_validate_json(line))
        except ValidationError as error:
            where, reason = first_problem(error)
            raise InputError(
                f"{path}, line {number}: {where + ': ' if where else ''}{reason}; each line is an "
                'object such as {"premise": "…", "hypothesis": "…", "entailed": true}.'
            ) from None
    if not found:
        raise InputError(f"The file {path} has no pairs; write one JSON object on each line.")
    return found


def write_pairs(path: Path, pairs: Iterable[LabelledPair]) -> None:
    """Write pairs as JSON Lines.

    Raises:
        InputError: The folder does not exist, or the file cannot be written.
    """
    if not path.parent.is_dir():
        raise InputError(f"The folder {path.parent} does not exist; make it, or name another file.")
    lines = (json.dumps(pair.model_dump(), ensure_ascii=False) + "\n" for pair in pairs)
    try:
        write_beside(path, "".join(lines))
    except OSError as error:
        raise InputError(
            f"The file {path} cannot be written ({error.strerror}); name another file."
        ) from None
