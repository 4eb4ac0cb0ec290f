"""YAML of every kind is read by one function, which takes neither aliases nor a key twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import InputError
from fairqr.base.yaml_file import load_yaml
from fairqr.evaluation.experiments.catalogue import read_experiment
from fairqr.prompts.template import load_template
from fairqr.retrieval.sources.schema import load_schema
from fairqr.retrieval.sources.source import load_source

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 11)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 11)
)


LOADERS: dict[str, Callable[[Path], Any]] = {
    **{"source": load_source, "schema": load_schema},
    **{"prompt": load_template, "experiment": read_experiment},
}


@pytest.mark.parametrize("what", LOADERS)
def test_what_nobody_wrote_by_hand_is_refused_at_once(tmp_path: Path, what: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("- {a: [1, 2, 3]}\n" * 700_000)
    started = time.process_time()
    refused = rf"^The {what} .* is (larger than 1 MB|not a file of at most 200,000 bytes); "

    with pytest.raises(InputError, match=refused):
        LOADERS[what](path)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(("text", "line"), [(BOMB, 2), (MERGED, 3), ("a: &a0 [*a0]", 1)])
@pytest.mark.parametrize("what", LOADERS)
def test_aliases_are_refused_at_once(tmp_path: Path, what: str, text: str, line: int) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    start = time.process_time()

    with pytest.raises(InputError, match=rf"^The {what} .*, line {line}, has the alias '\*a0'"):
        LOADERS[what](path)
    assert time.process_time() - start < 1


def test_what_a_plain_file_holds(tmp_path: Path) -> None:
    """An anchor that nothing refers to does no harm, nor does a merged mapping."""
    path = tmp_path / "file.yaml"
    path.write_text("a: &x [1, 2.5, yes, 'é']\nb: {<<: {c: 1, d: 2}, c: 3}\n", encoding="utf-8")

    assert load_yaml(path, "file") == {"a": [1, 2.5, "yes", "é"], "b": {"c": 3, "d": 2}}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a: 1\nb:\n  c: 1\n  c: 2", ", line 4, has 'c' twice; remove one of them."),
        (b"a: [", ", line 1 is not valid YAML ("),
        (b"a: !!python/name:os.system x", ", line 1 is not valid YAML ("),
        (b"\xff\xfe\x00", " is not valid YAML ('utf-8' codec"),
        pytest.param(b"[" * 100_000, " is not valid YAML (", id="deep"),
        (b"a: 2001-99-99", " is not valid YAML (month must be in 1..12); fix it."),
    ],
)
def test_each_fault_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content)

    with pytest.raises(InputError) as caught:
        load_yaml(path, "file")
    assert str(caught.value).startswith(f"The file {path}{sentence}")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read: Is a directory; check the path"):
        load_yaml(tmp_path, "file")
