"""What an audit of the service does with the files of an earlier attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.base.errors import InputError
from fairqr.cli.service import ServiceAuditor
from fairqr.graph.service.engine.engine import AuditResult
from fairqr.graph.service.engine.requests import AuditedQuery, AuditRequest
from fairqr.retrieval.sources.documents import Document
from tests.unit.retrieval.embedded import built

ASKED = AuditRequest(
    queries=[AuditedQuery(query="apple")], k=2, depth=4, target="uniform:1", intersections=False
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))


async def audited(folder: Path, documents: int) -> AuditResult:
    """Audit an index of so many documents, in a folder beside it."""
    people = [
        Document(f"d{n}", "", "apple", {"gender": ("male", "female")[n % 2]})
        for n in range(documents)
    ]
    engine = built(folder / f"index-of-{documents}", people)
    return await ServiceAuditor()(engine, ASKED, folder / "audit", lambda *stage: None)


async def test_only_an_index_that_was_built_again_begins_an_audit_again(tmp_path: Path) -> None:
    before = await audited(tmp_path, 10)
    after = await audited(tmp_path, 12)
    assert after.digest != before.digest
    left = tmp_path / "audit" / "manifest.json"
    left.write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        await audited(tmp_path, 14)
    assert left.read_text() == "{}"
