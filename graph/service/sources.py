"""The values of a section of the settings, from the file and from variables, and their sources."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from fairqr.base.errors import ConfigError, one_line
from fairqr.base.settings import ValueSource, beside, config_path, file_section, variable_of

Sources = dict[str, ValueSource]
"""Where values are from, by names with dots within the section. A name stands for all below it."""


def of_file(section: str, model: type[BaseModel]) -> tuple[dict[str, Any], Sources]:
    """Return what the settings file has in a section; its paths are relative to its folder.

    Raises:
        ConfigError: The file cannot be read, is no TOML, or has a path of nobody.
    """
    found, file = file_section(section)
    values = deepcopy(found)
    for name, field in model.model_fields.items():
        held = values.get(name)
        if Path in get_args(field.annotation) and isinstance(held, str):
            values[name] = str(beside(file, held))
        elif Path in get_args(field.annotation) and isinstance(held, list):
            values[name] = [str(beside(file, one)) if isinstance(one, str) else one for one in held]
    return values, {name: ValueSource("file", str(file)) for name in _leaves(values)}


def of_variables(section: str, model: type[BaseModel]) -> dict[str, tuple[str, Any]]:
    """Return the variable and the value of each setting that a variable sets.

    Lists are split at commas. Of a table of entries a variable gives the names alone.
    """
    found: dict[str, tuple[str, Any]] = {}
    for name, kind in names_of(model):
        variable = variable_of(f"{section}.{name}")
        value = os.environ.get(variable)
        if not value:
            continue
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if get_origin(kind) is dict:
            found[name] = (variable, dict.fromkeys(parts))
        else:
            found[name] = (variable, parts if get_origin(kind) is tuple else value)
    return found


def lay_over(values: dict[str, Any], name: str, value: Any, *, names: bool = False) -> None:
    """Set a value by its name with dots; a mapping is laid over the one that is there.

    Args:
        values: Of the section; changed.
        name: Of the value.
        value: What is not None of it counts.
        names: The mapping is one of names: the entries of others are dropped.
    """
    section, _, key = name.rpartition(".")
    table = values.setdefault(section, {}) if section else values
    if isinstance(value, Mapping):
        below = table.get(key) or {}
        if names:
            value = {one: below.get(one, {}) for one in value}
        else:
            value = {**below, **{one: it for one, it in value.items() if it is not None}}
    table[key] = value


def read_keys(values: dict[str, Any], sources: Sources, table: str) -> None:
    """Put the keys of a table's entries in the place of the names of variables that hold them.

    Raises:
        ConfigError: There is no such variable, or a key beside it.
    """
    entries = values.get(table)
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        variable = entry.pop("api_key_env", None) if isinstance(entry, dict) else None
        if variable is None:
            continue
        said = f"In the settings file {config_path()}, the api_key_env of {one_line(name, 80)}"
        if "api_key" in entry:
            raise ConfigError(f"{said} stands beside an api_key; give one of them.")
        if not isinstance(variable, str) or not os.environ.get(variable):
            raise ConfigError(f"{said} names a variable that is not set; set it.")
        entry["api_key"] = os.environ[variable]
        sources.pop(f"{table}.{name}.api_key_env", None)
        sources[f"{table}.{name}.api_key"] = ValueSource("variable", variable)


def names_of(model: type[BaseModel], within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name with dots and the type of each setting, also of the sections within."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from names_of(kind, f"{within}{name}.")
        else:
            yield f"{within}{name}", kind


def source_of(name: str, sources: Sources) -> ValueSource:
    """Return where a value is from: its own source, or that of what it is in."""
    while name:
        if name in sources:
            return sources[name]
        name = name.rpartition(".")[0]
    return ValueSource()


def _leaves(values: Mapping[str, Any], within: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{within}{name}.")
        else:
            yield f"{within}{name}"
