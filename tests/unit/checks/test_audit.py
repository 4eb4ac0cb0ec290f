"""The audit of what the project depends on: what it has to notice, it notices."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.checks import audit
from tests.checks.advisories import advice_on
from tests.checks.licences import is_allowed
from tests.checks.lock import check_bounds, check_lines, pins_of
from tests.servers.model_server import Answer, Asked, ModelServer, model_server

__all__ = ["model_server"]

HASH = "--hash=sha256:" + "0" * 64
FLAW = {
    "id": "PYSEC-2099-1",
    "summary": "It leaks.",
    "modified": "2099-01-01T00:00:00Z",
    "affected": [
        {
            "package": {"name": "certifi", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "9999"}]}],
        }
    ],
}


def test_lines_without_a_pin_or_a_hash_are_noticed() -> None:
    good = f"""# a comment
good==1.0 \\
    {HASH} \\
    {HASH}
    # via other
elsewhere[extra]==1.0 ; os_name == 'nt' {HASH}
"""
    assert [*check_lines(good)] == []
    assert [pin.name for pin in pins_of(good)] == ["good", "elsewhere"]
    for line in (
        *("bare==1.0", f"loose>=1.0 {HASH}", f"starred==1.* {HASH}", "weak==1.0 --hash=md5:00"),
        *(f"taken @ https://example.org/taken.whl {HASH}", "--index-url https://example.org"),
    ):
        (said,) = check_lines(f"{good}{line}\n")
        assert said.startswith(line.split(" --hash")[0][:60]), line


def test_a_lock_that_left_its_project_behind_is_noticed(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\ndependencies = ["Some_Thing>=2,<3", "torch"]\n'
        '[project.optional-dependencies]\nmore = ["other[x]>=1", "absent"]\n'
    )
    pins = pins_of(f"some-thing==3.1 {HASH}\nother==1.0 {HASH}\n")
    assert list(check_bounds(pins, project)) == [
        "some-thing 3.1 is locked, and <3,>=2 is required.",
        "absent is required and not in the lock; run 'make lock'.",
    ]


def test_licences_of_which_one_may_choose() -> None:
    for allowed in ("MIT", "MIT AND Zlib", "MIT AND (GPL-3.0-only OR Apache-2.0)"):
        assert is_allowed(allowed), allowed
    for other in ("MIT AND GPL-3.0-only", "MIT AND (GPL-3.0-only", "LGPL-3.0-only", ""):
        assert not is_allowed(other), other


def osv(asked: Asked) -> Answer:
    """Speaks OSV's protocol, and knows one flaw of certifi."""
    found = {"vulns": [FLAW]} if asked.body["package"]["name"] == "certifi" else {}
    return Answer(body=json.dumps(found).encode())


def test_a_known_vulnerability_fails_the_check_and_is_named(
    model_server: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_server.does(osv)
    lock, project = tmp_path / "lock", tmp_path / "pyproject.toml"
    pinned = version("certifi")
    lock.write_text(f"certifi=={pinned} {HASH}\nidna=={version('idna')} {HASH}\n")
    project.write_text('[project]\ndependencies = ["certifi"]\n')
    arguments = ["--lock", str(lock), "--project", str(project)]
    assert audit.main([*arguments, "--osv-url", f"{model_server.base_url}/query"]) == 1
    said = capsys.readouterr().out
    assert f"certifi {pinned} has the known vulnerability PYSEC-2099-1; fixed in 9999." in said
    assert "not compared" not in said


def test_where_no_service_answers_nothing_is_claimed() -> None:
    advice = advice_on([("certifi", "2020.1.1")], "http://127.0.0.1:9/v1/query")
    assert advice == ([], ["certifi"])
