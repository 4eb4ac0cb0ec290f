"""The settings file and recorded runs, by the command against a real model server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.model_server import KEY, Main, ModelServer, failure, says

FIRST = says({"topic": [], "keywords": ["woman", "laboratory"]})
OTHER = says({"topic": [], "keywords": ["she"]})


@pytest.fixture
def settings(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's settings file, which is not there yet."""
    file = clean_environment / "config" / "fairqr.toml"
    file.parent.mkdir()
    monkeypatch.setenv("FAIRQR_CONFIG", str(file))
    return file


def test_runs_are_recorded_and_listed(
    quick: Main, model_server: ModelServer, people: Path, settings: Path
) -> None:
    """The file says what is searched, which model is asked, and where each run is recorded."""
    settings.write_text(
        f'model = "openai:fake"\nbase_url = "{model_server.base_url}"\ntrace_dir = "runs"\n'
        f'corpus = "{people}"\n'
    )
    search = ("search", "physicist", "--attribute", "gender", "-k", "10")
    search = (*search, "--set", "ask=always", "--set", "cache=no", "--json")
    model_server.does(FIRST)
    first = quick(*search)
    assert first.code == 0, first
    model_server.does(OTHER)
    second = quick(*search, "--trace-content")
    model_server.does(failure(401, KEY))
    third = quick(*search, "--model", "openai:other")
    folder = settings.parent / "runs"
    assert folder.stat().st_mode & 0o077 == 0
    listed = json.loads(quick("trace", "list", "--json").stdout)
    assert [run["query"] for run in listed] == [None, "physicist", None]
    assert [run["status"] for run in listed] == ["ok"] * 3
    for run, done in zip(reversed(listed), (first, second, third), strict=True):
        usage = done.result["usage"]
        assert run["model_calls"] == usage["model_calls"]
        assert run["input_tokens"] == usage["prompt_tokens"]
        assert run["output_tokens"] == usage["completion_tokens"]
        assert KEY not in (folder / f"{run['name']}.jsonl").read_text()

    newest, oldest = listed[0]["name"], listed[-1]["name"]
    shown = quick("trace", "show", oldest).stdout
    assert "invoke_workflow fairqr" in shown
    assert "chat fake" in shown
    assert newest in quick("trace", "list").stdout.split("\n")[1]


def test_a_settings_file_in_the_current_folder_is_not_read(
    quick: Main, clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that was unpacked must not send queries and keys to a server that it names."""
    monkeypatch.chdir(clean_environment)
    (clean_environment / "fairqr.toml").write_text('base_url = "http://127.0.0.1:9/v1"\n')
    home = clean_environment / "home"
    home.mkdir()
    plain = {"FAIRQR_CONFIG": None, "HOME": str(home), "XDG_CONFIG_HOME": None}
    shown = json.loads(quick("config", "show", "--json", **plain).stdout)
    assert shown["settings"]["base_url"]["value"] is None
    assert str(home) in shown["file"]
    assert not shown["exists"]
