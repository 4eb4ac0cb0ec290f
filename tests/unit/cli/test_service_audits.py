"""What an audit of the service does with the files of an earlier attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import InputError
from fairqr.cli.service_audits import ServiceAuditor
from fairqr.graph.service.engine.audits import AuditedQuery, AuditResult
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.documents import Document
from tests.unit.retrieval.embedded import built

OPTIONS: dict[str, Any] = {"k": 2, "depth": 4, "target": "uniform:1"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))


async def audited(engine: SearchEngine, folder: Path, resumed: bool) -> AuditResult:
    def tell(stage: str, done: int, of: int) -> None:
        pass

    queries = [AuditedQuery(query="apple")]
    auditor = ServiceAuditor()
    return await auditor(engine, queries, OPTIONS, folder=folder, resumed=resumed, tell=tell)


def an_engine(folder: Path, documents: int) -> SearchEngine:
    people = [
        Document(f"d{n}", "", "apple", {"gender": ("male", "female")[n % 2]})
        for n in range(documents)
    ]
    return built(folder, people)


async def test_an_index_that_was_built_again_begins_the_audit_again(tmp_path: Path) -> None:
    before = await audited(an_engine(tmp_path / "v1", 10), tmp_path / "audit", resumed=False)
    rebuilt = an_engine(tmp_path / "v2", 12)
    with pytest.raises(InputError, match="holds a run with another engine"):
        await audited(rebuilt, tmp_path / "audit", resumed=False)
    after = await audited(rebuilt, tmp_path / "audit", resumed=True)
    assert after.digest != before.digest


async def test_nothing_else_removes_what_an_earlier_attempt_left(tmp_path: Path) -> None:
    engine, folder = an_engine(tmp_path / "v1", 10), tmp_path / "audit"
    await audited(engine, folder, resumed=False)
    left = folder / "manifest.json"
    left.write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        await audited(engine, folder, resumed=True)
    assert left.read_text() == "{}"
