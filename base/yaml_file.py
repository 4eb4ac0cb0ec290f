"""Reads YAML files that a person wrote, or somebody whom we do not trust."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fairqr.base.errors import InputError, one_line
from fairqr.base.files import open_file

LARGEST = 1_000_000
"""The most bytes of a file: what people write is far smaller, and a megabyte takes five seconds."""

_BOOLEAN = "tag:yaml.org,2002:bool"


class _RefusedError(Exception):
    """The file has something that we do not take; the arguments are its line and a sentence."""


class _Loader(yaml.SafeLoader):
    """A safe loader without duplicate keys and aliases; only true and false are booleans.

    YAML 1.1 would silently take the last of two equal keys, and read the country code NO as a
    boolean. A few lines of nested aliases expand to millions of values.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the base class has it
        first: rules if first in "tTfF" else [it for it in rules if it[0] != _BOOLEAN]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _RefusedError(
                event.start_mark.line + 1,
                f"has the alias '*{one_line(event.anchor, 60)}'; write its value out there.",
            )
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        known = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                # True and true are one key, and so are 1 and 01. The signs << and = have no value.
                is_sign = key.tag in ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")
                value = key.value if is_sign else self.construct_object(key)
                if value in known:
                    raise _RefusedError(
                        key.start_mark.line + 1,
                        f"has '{one_line(key.value)}' twice; remove one of them.",
                    )
                known.add(value)
        return node


def load_yaml(path: Path, what: str, error_type: type[InputError] = InputError) -> Any:
    """Read a YAML file into plain types.

    Args:
        path: The file.
        what: The kind of file, for messages: ``schema`` or ``source``.
        error_type: The class of errors to raise.

    Raises:
        InputError: The file is missing or is not YAML, has an alias, or has a key twice in a
            mapping, or is too large.
    """
    try:
        with open_file(path) as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        why = error.strerror
        raise error_type(f"The {what} {path} cannot be read: {why}; check the path.") from None
    if len(content) > LARGEST:
        raise error_type(
            f"The {what} {path} is larger than {LARGEST / 1e6:g} MB; check that it is the right "
            "file."
        )
    return parse_yaml(content, path, what, error_type)


def parse_yaml(content: bytes, path: Path, what: str, error_type: type[InputError]) -> Any:
    """Parse the content of a YAML file; see :func:`load_yaml`."""
    try:
        return yaml.load(content.decode(), _Loader)  # noqa: S506 - it is a SafeLoader
    except _RefusedError as error:
        line, sentence = error.args
        raise error_type(f"The {what} {path}, line {line}, {sentence}") from None
    except Exception as error:
        # It is not UTF-8, not YAML or nested too deeply; and for a value such as the date
        # 2001-99-99 the parser can raise anything.
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        why = one_line(getattr(error, "problem", None) or error)
        raise error_type(f"The {what} {path}{where} is not valid YAML ({why}); fix it.") from None
