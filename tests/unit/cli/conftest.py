"""What tests of the command share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fairqr.cli.main import main


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: object
    stdout: str
    stderr: str

    def complaint(self) -> str:
        """The one sentence of a command that was refused."""
        assert (self.code, self.stdout) == (2, ""), self
        assert self.stderr.startswith("fairqr: ")
        assert self.stderr.count("\n") == 1, self.stderr
        return self.stderr


@pytest.fixture
def fairqr(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ended]:
    """Runs the command in this process and in an empty folder, with folders of its own."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("FAIRQR_") and name != "FAIRQR_CONFIG":
            monkeypatch.delenv(name)
    for name in ("DATA", "CACHE"):
        monkeypatch.setenv(f"FAIRQR_{name}_DIR", str(tmp_path / name.lower()))

    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["fairqr", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code or 0, *capfd.readouterr())

    return call
