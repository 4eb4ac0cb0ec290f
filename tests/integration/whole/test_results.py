"""What the page of results promises, by its own command, with the real model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.listed_results import module as results


@pytest.mark.model
@pytest.mark.usefixtures("model_cache")
@pytest.mark.parametrize("name", ["fair-qr-rounds", "fair-qr-re-rankers"])
def test_a_result_comes_out_as_the_page_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that need no vectors of the collection, which take minutes to encode."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    small = results.results()[name].small
    assert small is not None
    assert results.ran(name, small)
