"""Recorded runs: their names are no paths, and what is in them does nothing to a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.integration.model_server import Command, ModelServer, says, search_arguments
from tests.integration.model_server import clean_environment as clean_environment
from tests.integration.model_server import command as command
from tests.integration.model_server import model_server as model_server
from tests.integration.model_server import people as people

HOSTILE = "physicist \x1b]0;owned\x07\x1b[2J\x9b31m \u202eevil\u2066 \r\nfairqr: all is well"
UNSEEN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "../secret.jsonl",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a/../../secret",
        "%2e%2e/s",
        "..\\secret",
        "secret\n",
    ],
)
def test_a_name_leads_to_no_other_folder(command: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.jsonl").write_text('{"name": "CANARY"}\n')
    folder = tmp_path / "traces"
    folder.mkdir()
    run = command("trace", "show", name, "--folder", folder)
    assert "CANARY" not in run.complaint()


def test_what_a_run_says_is_text_and_no_command(
    command: Command, model_server: ModelServer, people: Path, tmp_path: Path
) -> None:
    """Neither a query nor a model moves the cursor, sets the title, or turns the writing around."""
    reply = {"topic": ["laboratory"], "keywords": ["woman", HOSTILE], "reason": HOSTILE}
    model_server.does(says(reply))
    traces = tmp_path / "traces"
    recorded = {"FAIRQR_TRACE_DIR": str(traces), "FAIRQR_TRACE_CONTENT": "1"}
    arguments = [*search_arguments(model_server, people)]
    arguments[1] = HOSTILE
    shown = [command(*arguments, **recorded)]
    (file,) = traces.iterdir()
    assert json.loads(file.read_text().splitlines()[0])
    shown.append(command("trace", "show", file))
    shown.append(command("trace", "list", "--folder", traces))
    assert "owned" in shown[0].stdout
    assert "owned" in shown[1].stdout
    for run in shown:
        assert run.code == 0, run.stderr
        assert not UNSEEN.findall(run.stdout + run.stderr)
        assert "\nfairqr: all is well" not in run.stdout
