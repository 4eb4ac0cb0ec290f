"""The orders in which a report of an audit can stand: its own, and those that legal texts ask for.

A layout is a YAML file in ``files``. It changes no figure, names the articles that its parts go
with, and says what of the text an audit does not cover. None says that a law is met.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fairqr.base.errors import InputError, one_line
from fairqr.base.yaml_file import load_yaml

DEFAULT = "plain"
LAYOUTS = (DEFAULT, "ll144", "dsa", "ai-act")

Section = Literal[
    "gaps", "sure", "labels", "costs", "contributions", "rates", "seen", "queries", "method"
]


class LayoutPart(BaseModel):
    """A part of a report under one heading."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    heading: str = Field(description="With the article that it goes with.")
    text: str = Field("", description="What the article asks for, and what stands here.")
    sections: tuple[Section, ...] = Field((), description="The figures, in this order.")
    folded: bool = Field(False, description="Whether the page shows its heading alone at first.")


class Layout(BaseModel):
    """The order of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str = Field("", description="The title of the legal text; empty if there is none.")
    about: str = Field("", description="What the layout is for.")
    parts: tuple[LayoutPart, ...] = Field(description="In the order of the report.")
    not_covered: tuple[str, ...] = Field((), description="What the text asks for beyond.")
    small_category: float | None = Field(
        None, description="Groups with a smaller share of the candidates are marked."
    )

    @model_validator(mode="after")
    def _has_each_section_once(self) -> Layout:
        sections = [section for part in self.parts for section in part.sections]
        if sorted(sections) != sorted(get_args(Section)):
            raise ValueError(f"the sections are {', '.join(sections)}, not each of them once")
        return self


def load_layout(name: str) -> Layout:
    """Return a layout.

    Raises:
        InputError: There is none of this name.
    """
    if name not in LAYOUTS:
        raise InputError(
            f"There is no layout '{one_line(name)}'; the layouts are {', '.join(LAYOUTS)}."
        )
    path = Path(__file__).parent / "files" / f"{name.replace('-', '_')}.yaml"
    return Layout.model_validate(load_yaml(path, "layout"))
