"""The settings file and recorded runs, by the command against a real model server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.servers.model_server import KEY, Main, ModelServer, failure, says

FIRST = says({"topic": [], "keywords": ["woman", "laboratory"]})


@pytest.fixture
def settings(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's settings file, which is not there yet."""
    file = clean_environment / "config" / "fairqr.toml"
    file.parent.mkdir()
    monkeypatch.setenv("FAIRQR_CONFIG", str(file))
    return file


def test_runs_are_recorded_in_the_folder_that_settings_name(
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
    runs = [quick(*search), quick(*search, FAIRQR_TRACE_CONTENT="true")]
    model_server.does(failure(401, KEY))
    runs.append(quick(*search, "--model", "openai:other"))
    folder = settings.parent / "runs"
    assert folder.stat().st_mode & 0o077 == 0
    files = sorted(folder.glob("*.jsonl"), key=lambda it: it.stat().st_mtime)
    for file, done in zip(files, runs, strict=True):
        text = file.read_text()
        spans = [json.loads(line) for line in text.splitlines()]
        assert [it["status"] for it in spans if it["parent"] is None] == ["ok"]
        (told,) = (it["attributes"] for it in spans if it["name"] == "fairqr.rerank")
        assert told["fairqr.model_calls"] == done.result["usage"]["model_calls"]
        assert ("physicist" in text) is (file == files[1])  # content only when asked
        assert KEY not in text
    assert "chat fake" in quick("trace", "show", str(files[0])).stdout


@pytest.mark.promise("base")
def test_a_settings_file_in_the_current_folder_is_not_read(
    quick: Main, clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current folder is never searched for a settings file.

    An archive that was unpacked must not send queries and keys to a server that it names.
    """
    monkeypatch.chdir(clean_environment)
    (clean_environment / "fairqr.toml").write_text('base_url = "http://127.0.0.1:9/v1"\n')
    home = clean_environment / "home"
    home.mkdir()
    plain = {"FAIRQR_CONFIG": None, "HOME": str(home), "XDG_CONFIG_HOME": None}
    shown = json.loads(quick("config", "show", "--json", **plain).stdout)
    assert shown["settings"]["base_url"]["value"] is None
    assert str(home) in shown["file"]
    assert not shown["exists"]
