"""Prompts that we read again when their folder changes, so that new ones need no restart."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from fairqr.base.errors import PromptError, one_line
from fairqr.base.settings import path_of
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate

log = logging.getLogger(__name__)

LOOKED_AT = 1.0
"""Seconds between two looks at the folder."""


class LivePrompts(PromptLibrary):
    """The shipped prompts, and the current ones of the user's folder.

    Args:
        overrides: See :class:`PromptLibrary`.

    Raises:
        PromptError: The folder does not exist.
    """

    def __init__(self, overrides: Path | None = None) -> None:
        super().__init__(overrides)
        self._folder = overrides or path_of("prompts_dir")
        self._stamp = self._look()
        self._looked = time.monotonic()

    def names(self) -> list[tuple[str, str]]:
        """Return the ids and versions of all prompts, in order."""
        self._refresh()
        return super().names()

    def get(self, id_: str, version: str | None = None) -> PromptTemplate:
        """Return a prompt; see :meth:`PromptLibrary.get`.

        Raises:
            PromptError: It does not exist, or its file is wrong. Only the log says what is wrong
                and where the file is.
        """
        self._refresh()
        try:
            return super().get(id_, version)
        except PromptError as error:
            if self._folder is None or str(self._folder) not in str(error):
                raise
            log.warning("%s", error)
            shown = one_line(f"{id_}/{version}" if version else id_, 60)
            raise PromptError(
                f"The file of the prompt {shown} is wrong; ask whoever runs the service to mend it."
            ) from None

    def _refresh(self) -> None:
        if self._folder is None or time.monotonic() - self._looked < LOOKED_AT:
            return
        self._looked = time.monotonic()
        # If the folder is gone for a moment, its prompts stay.
        if (stamp := self._look()) != self._stamp and self._folder.is_dir():
            self._own = PromptLibrary(self._folder)._own
            self._stamp = stamp

    def _look(self) -> frozenset[tuple[str, int, int]]:
        """Return the names, times and sizes of the files."""
        found: set[tuple[str, int, int]] = set()
        for path in self._folder.glob("*/*.yaml") if self._folder else ():
            try:
                state = path.stat()
            except OSError:  # removed meanwhile
                continue
            found.add((str(path), state.st_mtime_ns, state.st_size))
        return frozenset(found)
