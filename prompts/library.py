"""The library of prompts: the user's own and those shipped with fairqr."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from fairqr.base.errors import PromptError
from fairqr.base.settings import path_of
from fairqr.prompts.contracts import check_contract
from fairqr.prompts.template import PromptTemplate, load_template

SHIPPED = Path(__file__).parent / "templates"

DEFAULT_VERSIONS = {"refine": "v4", "listwise": "v2", "pairwise": "v2"}
"""The default version of each prompt; ``v1`` for all others."""

Key = tuple[str, str]


class PromptLibrary:
    """Prompts by id and version, each read once from ``<folder>/<id>/<version>.yaml``.

    Args:
        overrides: The user's folder; defaults to ``FAIRQR_PROMPTS_DIR``. A prompt there replaces
            the shipped one with the same id and version, or adds another version.

    Raises:
        PromptError: The folder does not exist. A wrong file is only an error when its prompt is
            requested.
    """

    def __init__(self, overrides: Path | None = None) -> None:
        own = overrides or path_of("prompts_dir")
        if own is not None and not own.is_dir():
            raise PromptError(f"The folder of prompts {own} does not exist.")
        # The user's files are read now, so that a library does not change while it is used.
        self._own = {key: _read(path) for key, path in _places(own).items()} if own else {}
        self._shipped = _places(SHIPPED)

    def names(self) -> list[Key]:
        """Return the ids and versions of all prompts, sorted."""
        return sorted({*self._shipped, *self._own})

    def check(self, versions: Mapping[str, str]) -> None:
        """Check that these versions exist, given by the ids of their prompts.

        Raises:
            PromptError: A prompt is missing, or its file is wrong.
        """
        for id_, version in versions.items():
            self.get(id_, version)

    def get(self, id_: str, version: str | None = None) -> PromptTemplate:
        """Return a prompt.

        Args:
            id_: What the prompt is for, e.g. ``refine``.
            version: For example ``v2``; optional.

        Raises:
            PromptError: The prompt does not exist, or its file is wrong.
        """
        key = (id_, version or DEFAULT_VERSIONS.get(id_, "v1"))
        found = self._own.get(key)
        if found is None and key in self._shipped:
            found = _read_shipped(self._shipped[key])
        if found is None:
            # List the versions of this prompt, or all prompts if the id is unknown.
            alike = [each for each in self.names() if each[0] == id_] or self.names()
            known = ", ".join("/".join(each) for each in alike)
            raise PromptError(f"There is no prompt {'/'.join(key)}; choose one of {known}.")
        if isinstance(found, PromptError):
            raise PromptError(str(found))
        return found


def _places(folder: Path) -> dict[Key, Path]:
    return {(path.parent.name, path.stem): path for path in folder.glob("*/*.yaml")}


def _read(path: Path) -> PromptTemplate | PromptError:
    """Read a prompt and check that the code can use it, or return what is wrong with it."""
    try:
        template = load_template(path)
        check_contract(template)
    except PromptError as error:
        return error
    return template


_read_shipped = functools.cache(_read)
