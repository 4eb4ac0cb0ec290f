"""Prompts that somebody else may have written: files, YAML and templates are read as what they say.

A folder of prompts belongs to whoever runs the service. What others put there must not run, must
not hang the service, and must not tell those who ask it where it is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import yaml

from fairqr.base.errors import PromptError
from fairqr.prompts.library import SHIPPED, PromptLibrary
from fairqr.prompts.template import LARGEST, load_template

GOOD = yaml.safe_load((SHIPPED / "refine" / "v4.yaml").read_text())
LEVELS = range(1, 10)
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in LEVELS
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{level}: &a{level}\n  <<: [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in LEVELS
)


@pytest.mark.promise("prompts")
@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch ran']",
        "!!python/object/new:os.system ['touch ran']",
        "!!python/name:os.system",
        "id: !!python/object/apply:subprocess.run [[touch, ran]]",
        BOMB,
        MERGED,
        "a: &a [*a]",
        "a: &a {<<: *a}",
        "id: refine\nversion: v1\nmessages: &a [*a]\ninput_variables: []",
        "[" * 100_000,
        "{a: " * 20_000,
        "? " * 20_000,
        "id: " + "1:" * 50_000 + "1",
        "id: 2001-99-99",
        "id: !!binary ====",
        "id: refine\n---\nid: refine",
        "x" * (LARGEST + 1),
    ],
    ids=[
        "apply",
        "new",
        "name",
        "apply within",
        "bomb",
        "merged bomb",
        "round list",
        "round map",
        "round messages",
        "deep lists",
        "deep maps",
        "deep keys",
        "number in base 60",
        "no date",
        "no base64",
        "two files",
        "too large",
    ],
)
def test_yaml_that_would_do_more_than_say_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """The file of a prompt is plain YAML: what would run, grow or loop is refused, and soon."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "v1.yaml"
    path.write_text(text)
    started = time.monotonic()

    with pytest.raises(PromptError):
        load_template(path)
    assert time.monotonic() - started < 20
    assert not (tmp_path / "ran").exists()


@pytest.mark.promise("prompts")
@pytest.mark.parametrize(
    "placeholder",
    [
        "{query.__class__}",
        "{query.__init__.__globals__}",
        "{query[0]}",
        "{0}",
        "{}",
        "{query!r}",
        "{query!r:>99999999}",
        "{query:>99999999}",
        "{query:{limit}}",
        "{__class__}",
        "{query",
        "}",
        "{query}{secret}",
        "{query }",
        "{{{query.a}}}",
    ],
)
def test_a_template_reads_nothing_but_its_variables(tmp_path: Path, placeholder: str) -> None:
    """A prompt has plain names as placeholders; they read no attributes, have no formats, and name
    nothing but its variables.
    """
    message = {"role": "user", "content": f"{GOOD['messages'][-1]['content']} {placeholder}"}
    path = tmp_path / "refine" / "v9.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump({**GOOD, "version": "v9", "messages": [message]}))

    with pytest.raises(PromptError):
        load_template(path)


@pytest.fixture
def folder_of_no_files(tmp_path: Path) -> Path:
    """A folder of prompts that are pipes, endless, lost, round, folders or of elsewhere."""
    folder = tmp_path / "refine"
    folder.mkdir()
    os.mkfifo(folder / "pipe.yaml")
    (folder / "endless.yaml").symlink_to("/dev/zero")
    (folder / "lost.yaml").symlink_to(tmp_path / "nothing")
    (folder / "round.yaml").symlink_to(folder / "round.yaml")
    (folder / "folder.yaml").mkdir()
    (tmp_path / "elsewhere").write_text("root:x:0:0")
    (folder / "elsewhere.yaml").symlink_to(tmp_path / "elsewhere")
    return tmp_path


@pytest.mark.parametrize("version", ["pipe", "endless", "lost", "round", "folder", "elsewhere"])
def test_what_is_no_file_is_not_waited_for(folder_of_no_files: Path, version: str) -> None:
    started = time.monotonic()
    library = PromptLibrary(folder_of_no_files)
    with pytest.raises(PromptError) as refused:
        library.get("refine", version)
    assert "root:" not in str(refused.value)
    assert time.monotonic() - started < 20
