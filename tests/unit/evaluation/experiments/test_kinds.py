"""The kinds of experiments, by what they share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.kinds import KINDS


@pytest.mark.parametrize("name", KINDS)
def test_without_pandas_the_sentence_says_what_to_install(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for use in (KINDS[name].measure, lambda folder: KINDS[name].report(folder, print)):
        with pytest.raises(InputError, match=r"pip install 'fairqr\[evaluation\]'"):
            use(tmp_path)
