"""Files that are written beside their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairqr.base.files import open_beside, write_beside


def test_a_file_gets_the_mode_that_every_other_file_gets(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_beside(tmp_path / "new", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


def test_a_file_may_be_for_its_owner_alone(tmp_path: Path) -> None:
    with open_beside(tmp_path / "new", mode=0o600) as stream:
        (beside,) = tmp_path.iterdir()
        assert beside.stat().st_mode & 0o777 == 0o600
        stream.write(b"x")
    assert (tmp_path / "new").read_bytes() == b"x"
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError("no space")

    path = tmp_path / "kept"
    write_beside(path, "old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_beside(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
