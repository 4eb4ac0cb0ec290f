"""What the page proposes to try, on the built-in corpus that it proposes it for."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from fairqr import FairSearch
from tests.integration.model_server import clean_environment

__all__ = ["clean_environment"]


def test_what_the_page_proposes_is_found(clean_environment: Path) -> None:
    """Each word of an example that says what it is about is in documents of notables."""
    text = (resources.files("fairqr.graph.service.page") / "form.js").read_text()
    examples = re.search(r"EXAMPLES = \{(.*?)\};", text, re.DOTALL)
    assert examples
    queries = re.findall(r'"(.+?)"', examples[1])
    assert len(queries) > 3
    with FairSearch.open("notables") as search:
        for word in {word for query in queries for word in re.findall(r"\b[a-z]{5,}\b", query)}:
            found = search.search(word, attribute="gender", method="plain", k=10)
            assert found.ranking, word
