"""The commands ``fairqr prompts …``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairqr.prompts.library import DEFAULT_VERSIONS, SHIPPED

Fairqr = Callable[..., Any]
REFINE = SHIPPED / "refine" / "v1.yaml"


def copy_prompt(folder: str, *change: str) -> Path:
    """Copy a shipped prompt into a folder of our own, with a change; return the file."""
    path = Path(folder, "refine", "v1.yaml")
    path.parent.mkdir(parents=True)
    text = REFINE.read_text()
    path.write_text(text.replace(*change) if change else text)
    return path


def test_list_marks_the_default(fairqr: Fairqr) -> None:
    """One line for each version; of each prompt the one in use has an asterisk."""
    lines = fairqr("prompts", "list").stdout.splitlines()
    marked = [line.split()[1] for line in lines if line.startswith("*")]
    ids = {line.removeprefix("*").split()[0].split("=")[0] for line in lines}

    assert len(lines) > len(ids) == len(marked)
    assert {name.split("=")[0] for name in marked} == ids
    assert f"refine={DEFAULT_VERSIONS['refine']}" in marked


def test_show_prints_the_file_ready_to_copy(fairqr: Fairqr) -> None:
    assert fairqr("prompts", "show", "refine=v1").stdout == REFINE.read_text()


def test_show_prints_a_prompt_of_ones_own(fairqr: Fairqr) -> None:
    mine = copy_prompt("own", "<query>", "<question>")
    shown = fairqr("prompts", "show", "refine=v1", "--prompts", "own").stdout
    assert shown == mine.read_text() != REFINE.read_text()


def test_show_says_which_versions_there_are(fairqr: Fairqr) -> None:
    assert "refine/v1, refine/v2" in fairqr("prompts", "show", "refine=v99").complaint()


def test_list_names_each_wrong_file_and_lists_the_others(fairqr: Fairqr) -> None:
    """All are read; the fault stands in the list, the verdict is the error."""
    copy_prompt("good")
    good = fairqr("prompts", "list", "--prompts", "good")
    assert good.code == 0

    wrong = copy_prompt("wrong", "{query}", "{mood}")
    code, stdout, stderr = fairqr("prompts", "list", "--prompts", "wrong")
    assert (code, "1 of " in stderr) == (2, True)
    assert str(wrong) in stdout
    assert "mood" in stdout
    assert stdout.count("\n") == good.stdout.count("\n")
