"""Files that are written beside their place, secrets that are withheld, cores, and errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fairqr.base.files import open_beside, write_beside
from fairqr.base.loops import usable_cores
from fairqr.base.secrets import without_secrets


def test_files_are_for_everybody_or_their_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_beside(tmp_path / "new", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    with open_beside(tmp_path / "own", mode=0o600) as stream:
        (beside,) = tmp_path.glob(".own*")
        assert beside.stat().st_mode & 0o777 == 0o600
        stream.write(b"x")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600


@pytest.mark.promise("base")
def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be written whole leaves what was there."""

    def fail(handle: int) -> None:
        raise OSError("no space")

    path = tmp_path / "kept"
    write_beside(path, "old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_beside(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.promise("audit")
def test_secrets_are_withheld() -> None:
    """Secrets of a source are printed nowhere."""
    described = {
        "url": "https://user:hunter2@host/search?q={{query}}&api_key=hunter2&size={{size}}#top",
        "credentials": "production",
        "body": {"apiKey": "hunter2", "query": {"token_count": 3, "tokenizer": "standard"}},
        "headers": [{"Authorization": "Bearer hunter2"}, "x?key=hunter2"],
        "runs": ("a.run", "b.run"),
    }
    shown = without_secrets(described)
    assert shown == {
        "url": "https://host/search?q={{query}}&api_key=withheld&size={{size}}#top",
        "credentials": "production",
        "body": {"apiKey": "withheld", "query": {"token_count": 3, "tokenizer": "standard"}},
        "headers": [{"Authorization": "withheld"}, "x?key=withheld"],
        "runs": ("a.run", "b.run"),
    }
    assert "hunter2" not in json.dumps(without_secrets(["--set", "model.api-key=hunter2"]))


def test_cores_are_those_that_the_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for named, expected in {"3": 3, " 2,4": 2}.items():
        monkeypatch.setenv("OMP_NUM_THREADS", named)
        assert usable_cores() == expected
    for named in ("", "0", "-1", "many", "²"):
        monkeypatch.setenv("OMP_NUM_THREADS", named)
        assert 1 <= usable_cores() <= (os.cpu_count() or 1)
