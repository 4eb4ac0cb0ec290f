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

ASKED = AuditRequest(
    queries=[AuditedQuery(query="apple")], k=2, depth=4, target="uniform:1", intersections=False
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))


async def audited(engine: SearchEngine, folder: Path) -> AuditResult:
    return await ServiceAuditor()(engine, ASKED, folder, lambda stage, done, of: None)


def an_engine(folder: Path, documents: int) -> SearchEngine:
    people = [
        Document(f"d{n}", "", "apple", {"gender": ("male", "female")[n % 2]})
        for n in range(documents)
    ]
    return built(folder, people)


async def test_an_index_that_was_built_again_begins_the_audit_again(tmp_path: Path) -> None:
    before = await audited(an_engine(tmp_path / "v1", 10), tmp_path / "audit")
    after = await audited(an_engine(tmp_path / "v2", 12), tmp_path / "audit")
    assert after.digest != before.digest


async def test_nothing_else_removes_what_an_earlier_attempt_left(tmp_path: Path) -> None:
    engine, folder = an_engine(tmp_path / "v1", 10), tmp_path / "audit"
    await audited(engine, folder)
    left = folder / "manifest.json"
    left.write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        await audited(engine, folder)
    assert left.read_text() == "{}"
