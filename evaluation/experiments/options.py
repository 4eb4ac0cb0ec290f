"""What the files of all kinds of experiments have."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fairqr.base.errors import InputError, one_line

# A switch such as "true" is no number.
Count = Annotated[int, Field(ge=1, strict=True)]
Seed = Annotated[int, Field(ge=0, strict=True)]


class Options(BaseModel):
    """An experiment.

    Attributes:
        filled: The lists that need an entry.
        distinct: More lists in which nothing may occur twice.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    filled: ClassVar[tuple[str, ...]] = ()
    distinct: ClassVar[tuple[str, ...]] = ()

    title: str = Field(description="The title of the report.")
    about: str = Field("", description="What the experiment asks, for the report.")

    @model_validator(mode="after")
    def _has_whole_lists(self) -> Options:
        for name in (*self.filled, *self.distinct):
            values = getattr(self, name)
            if name in self.filled and not values:
                raise ValueError(f"the list of {name} is empty; name at least one")
            if len(set(values)) < len(values):
                raise ValueError(f"one of the {name} is named twice; name each once")
            for value in values:
                if isinstance(value, str) and (not value.strip() or not value.isprintable()):
                    raise ValueError(f"'{one_line(value)}' is not a name")
        return self


def check_prompts(named: Set[str], used: Set[str]) -> None:
    """Check that an experiment asks with the prompts whose version is chosen.

    Raises:
        InputError: It does not use one of them.
    """
    if unused := sorted(named - used):
        known = f"the prompts here are {', '.join(sorted(used))}" if used else "there are none here"
        raise InputError(f"The prompt '{one_line(unused[0])}' is not used; {known}.")
