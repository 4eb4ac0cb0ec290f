"""What the files of all kinds of experiments have."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
        return self
