"""Requests with the fields of the graph's models: their defaults, ranges and descriptions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypeVar, get_args

from annotated_types import Le, Lt
from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

T = TypeVar("T", bound=BaseModel)

LARGEST = 2**31 - 1
"""The largest whole number, unless the field has its own limit."""


def with_fields(
    *models: type[BaseModel],
    without: Collection[str] = (),
    instead: Mapping[str, Any] | None = None,
) -> Callable[[type[T]], type[T]]:
    """Return a decorator that adds the fields of other models to a model.

    Args:
        models: The other models. If two have a field of the same name, the last one counts.
        without: The fields to leave out.
        instead: Other annotations for JSON, by field.
    """

    def add(decorated: type[T]) -> type[T]:
        fields: dict[str, Any] = {}
        for model in models:
            for name, field in model.model_fields.items():
                if name in without or name in decorated.model_fields:
                    continue
                changed = (instead or {}).get(name)
                fields[name] = _field(field, changed)
        return create_model(
            decorated.__name__,
            __base__=decorated,
            __module__=decorated.__module__,
            __doc__=decorated.__doc__,
            **fields,
        )

    return add


def _field(field: FieldInfo, changed: Any) -> tuple[Any, Any]:
    """Return the annotation and the field for :func:`pydantic.create_model`."""
    annotation, metadata, default = field.annotation, field.metadata, field.default
    if changed is not None:
        annotation, metadata = changed, []
        if isinstance(default, tuple):
            default = [*default]
        elif default is not None and not isinstance(default, int):
            default = str(default)
    elif int in {annotation, *get_args(annotation)} and not _is_bounded(metadata):
        metadata = [*metadata, Le(LARGEST)]
    if field.is_required():
        default = ...
    if metadata:
        annotation = Annotated[annotation, *metadata]  # type: ignore[assignment]
    return annotation, Field(default, description=field.description)


def _is_bounded(metadata: list[Any]) -> bool:
    return any(isinstance(each, Le | Lt) for each in metadata)
