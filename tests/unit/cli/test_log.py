"""What the service writes into its log of what libraries say."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from fairqr.cli.service import LOG, JsonLines, without_traceback


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """Return what a log of some form gets."""
    written = io.StringIO()
    lines = logging.StreamHandler(written)
    lines.setFormatter(JsonLines() if request.param == "json" else logging.Formatter(LOG))
    lines.addFilter(without_traceback)
    logging.getLogger().addHandler(lines)
    yield written
    logging.getLogger().removeHandler(lines)


def test_an_attempt_of_the_client_of_elasticsearch_is_one_line(log: io.StringIO) -> None:
    client = logging.getLogger("elastic_transport.transport")
    try:
        raise ConnectionResetError("by a peer whose address is private")
    except ConnectionResetError as error:
        client.warning("Retrying (attempt %r of %r)", 1, 3, exc_info=error)
    (line,) = log.getvalue().splitlines()

    assert "Retrying (attempt 1 of 3): ConnectionResetError" in line
    assert "Traceback" not in line
    assert "private" not in line


def test_a_bug_keeps_its_traceback(log: io.StringIO) -> None:
    try:
        raise LookupError("here")
    except LookupError:
        logging.getLogger("fairqr").exception("A bug")
    text = log.getvalue()
    if text.startswith("{"):
        assert json.loads(text)["message"] == "A bug"
    else:
        assert "Traceback" in text
