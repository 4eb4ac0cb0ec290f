"""The commands ``fairqr prompts …``."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fairqr.base.errors import PromptError
from fairqr.cli.main import app
from fairqr.prompts.library import DEFAULT_VERSIONS, SHIPPED


@pytest.fixture(autouse=True)
def no_configured_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRQR_PROMPTS_DIR", raising=False)


def prompts(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["prompts", *map(str, arguments)])


def own(tmp_path: Path, change: tuple[str, str] = ("", "")) -> Path:
    folder = tmp_path / "own"
    (folder / "refine").mkdir(parents=True)
    text = (SHIPPED / "refine" / "v1.yaml").read_text()
    (folder / "refine" / "v1.yaml").write_text(text.replace(*change) if change[0] else text)
    return folder


def test_list_marks_the_default() -> None:
    """One line for each version; of each prompt the one in use has an asterisk."""
    lines = prompts("list").stdout.splitlines()
    marked = [line.split()[1] for line in lines if line.startswith("*")]
    ids = {line.removeprefix("*").split()[0].split("=")[0] for line in lines}
    assert len(lines) > len(ids) == len(marked)
    assert {name.split("=")[0] for name in marked} == ids
    assert f"refine={DEFAULT_VERSIONS['refine']}" in marked


def test_show_prints_the_file_ready_to_copy(tmp_path: Path) -> None:
    shipped = (SHIPPED / "refine" / "v1.yaml").read_bytes()
    assert prompts("show", "refine=v1").stdout_bytes == shipped
    mine = own(tmp_path, ("<query>", "<question>"))
    shown = prompts("show", "refine=v1", "--prompts", mine).stdout_bytes
    assert shown == (mine / "refine" / "v1.yaml").read_bytes() != shipped


def test_show_says_what_there_is() -> None:
    """A version that does not exist is answered with those that do."""
    result = prompts("show", "refine=v99")
    assert isinstance(result.exception, PromptError)
    assert "refine/v1, refine/v2" in str(result.exception)


def test_list_names_each_file_that_is_wrong_and_lists_the_others(tmp_path: Path) -> None:
    """All are read; the fault stands in the list, the verdict is the error."""
    good = prompts("list", "--prompts", own(tmp_path))
    assert good.exception is None
    wrong = own(tmp_path / "wrong", ("{query}", "{mood}"))
    result = prompts("list", "--prompts", wrong)
    assert isinstance(result.exception, PromptError)
    assert "1 of " in str(result.exception)
    assert str(wrong / "refine" / "v1.yaml") in result.stdout
    assert "mood" in result.stdout
    assert result.stdout.count("\n") == good.stdout.count("\n")
