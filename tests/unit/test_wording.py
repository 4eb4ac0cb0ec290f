"""No file has the words and the names of classes that were replaced once: they come back."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS = r"(?i)\banew\b|where none\b|none where\b|\bby itself\b|\bthe begin of\b|\blesser of\b"
WORDS += r"|would have (been )?found|told from chance|no group takes|what is due could"
VAGUE = {"Telling", "Filling", "Asking", "Work", "There", "Sides", "One", "Found"}
"""Names that do not say what a thing is."""

ONE_MEANING = {"Source", "Estimate", "Part", "Table", "Store", "Asked"}
"""Names that mean one thing in the whole project."""


def files(*kinds: str) -> dict[str, str]:
    named = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *kinds]
    listed = subprocess.run(named, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    paths = [ROOT / name for name in listed.splitlines() if "vendor/" not in name]
    own = (path for path in paths if path.is_file() and path != Path(__file__))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in own}


def test_no_sentence_has_words_that_readers_stumble_over() -> None:
    found = files("*.py", "*.md", "*.js", "*.html", "*.yaml", "*.j2")
    assert len(found) > 500
    assert [name for name, text in found.items() if re.search(WORDS, text)] == []


def test_names_of_classes_say_what_they_are_and_mean_one_thing() -> None:
    named = Counter[str]()
    for text in files("*.py").values():
        named.update(it.name for it in ast.walk(ast.parse(text)) if isinstance(it, ast.ClassDef))
    assert VAGUE & named.keys() == set()
    assert {name: count for name in ONE_MEANING if (count := named[name]) > 1} == {}
