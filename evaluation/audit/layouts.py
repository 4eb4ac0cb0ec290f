"""The orders in which a report of an audit can stand: its own, and those that legal texts ask for.

A layout is a YAML file in ``files``. It changes no figure, names the articles that its parts go
with, and says what of the text an audit does not cover. None says that a law is met.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairqr.base.errors import InputError, one_line
from fairqr.base.yaml_file import load_yaml

DEFAULT = "plain"
LAYOUTS = (DEFAULT, "ll144", "dsa", "ai-act")


Layout = dict[str, Any]
"""The ``title`` of the legal text and what the layout is ``about``, empty if there is none; its
``parts``; what of the text is ``not_covered``; and ``small_category``, the share of the candidates
below which groups are marked. A part has its ``heading``, with the article that it goes with; the
``text`` on what the article asks for and what stands here; the ``sections`` of figures; and is
``folded`` if the page shows its heading alone at first."""


def load_layout(name: str) -> Layout:
    """Return a layout.

    Raises:
        InputError: There is none of this name.
    """
    if name not in LAYOUTS:
        raise InputError(f"There is no layout '{one_line(name)}'; choose {', '.join(LAYOUTS)}.")
    path = Path(__file__).parent / "files" / f"{name.replace('-', '_')}.yaml"
    held: Layout = load_yaml(path, "layout")
    parts = [{"text": "", "sections": [], "folded": False} | part for part in held["parts"]]
    defaults = {"title": "", "about": "", "not_covered": [], "small_category": 0}
    return defaults | held | {"parts": parts}
