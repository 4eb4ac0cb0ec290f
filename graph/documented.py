"""Models whose docstrings describe their fields, as those of other classes do."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema

_HEAD = re.compile(r"\n+(?:Args|Attributes):\n")
_ENTRY = re.compile(r"^    (\w[\w, ]*): (.+(?:\n {8}.+)*)", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?(?:\w+\.)*(\w+)`")


def documented(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Return what a docstring says before its section ``Args`` or ``Attributes``, and of each name.

    The words about a name are one line, in Markdown.
    """
    text = _ROLE.sub(r"`\1`", inspect.cleandoc(docstring or "")).replace("``", "`")
    about, *rest = _HEAD.split(text, maxsplit=1)
    entries = _ENTRY.findall(rest[0].partition("\nRaises:")[0]) if rest else []
    told = {names: " ".join(words.split()) for names, words in entries}
    return about, {name: words for names, words in told.items() for name in names.split(", ")}


class Documented(BaseModel):
    """A model whose fields have the descriptions that stand in its docstring."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Describe the fields, those of other classes by their docstrings."""
        told: dict[str, str] = {}
        for each in reversed(cls.__mro__):
            told |= documented(each.__doc__)[1]
        for name, field in cls.model_fields.items():
            field.description = told.get(name) or field.description

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the JSON schema with these descriptions."""
        schema = handler(core_schema)
        own = handler.resolve_ref_schema(schema)
        own["description"] = documented(cls.__doc__)[0]
        for name, entry in own.get("properties", {}).items():
            if name in cls.model_fields and (words := cls.model_fields[name].description):
                entry["description"] = words
        return schema
