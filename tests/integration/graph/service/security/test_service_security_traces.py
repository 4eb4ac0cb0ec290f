"""What is in a recorded run does nothing to a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.integration.model_server import Command, ModelServer, says, search_arguments

HOSTILE = "physicist \x1b]0;owned\x07\x1b[2J\x9b31m \u202eevil\u2066 \r\nfairqr: all is well"
UNSEEN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


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
    searched = command(*arguments, **recorded)
    (file,) = traces.iterdir()
    assert json.loads(file.read_text().splitlines()[0])
    for run in (searched, command("trace", "show", file)):
        assert "owned" in run.stdout
        assert run.code == 0, run.stderr
        assert not UNSEEN.findall(run.stdout + run.stderr)
        assert "\nfairqr: all is well" not in run.stdout
