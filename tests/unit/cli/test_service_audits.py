"""What an audit of the service does with the files of an earlier attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.base.errors import InputError
from fairqr.cli.service_audits import ServiceAuditor
from fairqr.graph.service.execution.audits import AuditResult
from fairqr.graph.service.execution.requests import AuditedQuery, AuditRequest
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.documents import Document
from tests.unit.retrieval.embedded import built

REQUEST = AuditRequest(
    queries=[AuditedQuery(query="apple")], k=2, depth=4, target="uniform:1", intersections=False
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))


async def run_audit(engine: SearchEngine, folder: Path) -> AuditResult:
    return await ServiceAuditor()(engine, REQUEST, folder, lambda stage, done, of: None)


def an_engine(folder: Path, documents: int) -> SearchEngine:
    people = []
    for number in range(documents):
        gender = "female" if number % 2 else "male"
        people.append(Document(f"d{number}", "", "apple", {"gender": gender}))
    return built(folder, people)


async def test_an_index_that_was_built_again_begins_the_audit_again(tmp_path: Path) -> None:
    before = await run_audit(an_engine(tmp_path / "v1", 10), tmp_path / "audit")
    after = await run_audit(an_engine(tmp_path / "v2", 12), tmp_path / "audit")
    assert after.digest != before.digest


async def test_nothing_else_removes_what_an_earlier_attempt_left(tmp_path: Path) -> None:
    engine = an_engine(tmp_path / "v1", 10)
    folder = tmp_path / "audit"
    await run_audit(engine, folder)
    manifest = folder / "manifest.json"
    manifest.write_text("{}")

    with pytest.raises(InputError, match="damaged"):
        await run_audit(engine, folder)
    assert manifest.read_text() == "{}"
