"""Reports that were read once, and must stay as they are.

``FAIRQR_RECORD=1 pytest …`` writes them again; compare the files then.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "reports"
_VARYING = re.compile(
    r"^(\| (?:begun|versions|prompt [^|]*|sha256 of [^|]*) \|).*$", flags=re.MULTILINE
)


def check_report(kind: str, text: str) -> None:
    """Compare a report with the recorded one of its kind, but for dates, versions and hashes."""
    check_text(f"{kind}.md", _VARYING.sub(r"\1 … |", text))


def check_text(name: str, text: str) -> None:
    """Compare a text with the recorded one."""
    path = FOLDER / name
    if os.environ.get("FAIRQR_RECORD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
