"""What the files of all kinds of experiments have."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

# A switch such as "true" is no number.
Count = Annotated[int, Field(ge=1, strict=True)]
Seed = Annotated[int, Field(ge=0, strict=True)]


class Options(BaseModel, frozen=True, extra="forbid"):
    """An experiment."""

    title: str = Field(description="The title of the report.")
    about: str = Field("", description="What the experiment asks, for the report.")

    @model_validator(mode="after")
    def _has_whole_lists(self) -> Self:
        """Check that a list is only empty if it is so by default, and that nothing occurs twice."""
        for name, values in ((name, it) for name, it in self if isinstance(it, tuple)):
            if not values and type(self).model_fields[name].default != ():
                raise ValueError(f"the list of {name} is empty; name at least one")
            if any(it in values[:place] for place, it in enumerate(values)):
                raise ValueError(f"one of the {name} is named twice; name each once")
        return self
