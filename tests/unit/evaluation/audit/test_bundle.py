"""The folder of an audit: what it keeps, what it hides, and how tampering shows."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.bundle import REDACTED, AuditFolder, AuditManifest, pseudonymous
from fairqr.evaluation.audit.queries import AuditQuery, Queries
from fairqr.evaluation.audit.records import Observation
from fairqr.evaluation.experiments.folder import versions
from fairqr.evaluation.experiments.verifying import verify
from fairqr.retrieval.fairness.table import coded
from fairqr.retrieval.sources.schema import Attribute

TEXTS = ("hepatitis nearby", "Jane Doe divorce", "cheap zebra saddle", 'naïve 物理 "quoted"')
RAW = ("raw/observations.jsonl", "raw/queries.json")
FILES = ("audit.json", "queries.csv", *RAW, "report.html")
VERSIONS = versions() | {"server": "Elasticsearch 8.19.1"}


def asked() -> Queries:
    made = tuple(
        AuditQuery(hashlib.sha256(text.encode()).hexdigest()[:16], text, 1.5 + place, 1 + place, 2)
        for place, text in enumerate(TEXTS)
    )
    return Queries(made, lines=12, weight=12.0, design="All 4 were asked.")


def observation(query: AuditQuery, place: int) -> Observation:
    if place == 3:
        message = f"No run has the query '{query.text}'."
        return Observation(query=query.id, status="failed", message=message)
    ids = tuple(f"d{place}{rank}" for rank in range(3))
    shares = np.eye(2)[[0, 1, place % 2]]
    return Observation(
        query=query.id,
        status="ok",
        ids=ids,
        relevance=(1.0, 0.25, place / 3),
        groups=dict(coded({"gender": shares}, ["gender"])),
    )


def manifest(**changes: Any) -> AuditManifest:
    made = AuditManifest(
        spec={"k": 10, "queries": "queries.txt"},
        source={"engine": "elasticsearch", "index": "people"},
        inputs={"labels.csv": "0" * 64},
        queries="1" * 64,
        engine={
            "name": "people",
            "engine": "elasticsearch",
            "location": "http://127.0.0.1:9200/people",
            "retriever": "own",
        },
        attributes={
            "gender": Attribute(name="gender", field="gender", groups=("female", "male")),
        },
        relevance="estimated",
        versions=VERSIONS,
        command=("fairqr", "audit", "--queries", "queries.txt"),
        started="2026-11-21T19:00:00+00:00",
    )
    return made.model_copy(update=changes)


def figures(folder: Path) -> dict[str, bytes]:
    """Compute something of every number of every observation, as an audit would."""
    kept = AuditFolder(folder)
    weights = {query.id: query.weight for query in kept.queries().queries}
    seen = [
        weights[found.query] * (place + 1) * (1 + place / 7 + sum(found.relevance or ()))
        for place, found in enumerate(kept.observed([*weights]))
    ]
    data = {"exposure": {"female": {"value": sum(seen), "interval": [0.25, None]}}, "seen": seen}
    text = json.dumps({**data, "k": kept.manifest().spec["k"]}, indent=1)
    return {"audit.json": text.encode()}


def made_again(
    content: Callable[[Path], Mapping[str, bytes]] = figures,
) -> Callable[[Path, Path], None]:
    """Return what writes figures again; other files stay as they are."""

    def make(folder: Path, into: Path) -> None:
        for name in ("queries.csv", "report.html"):
            shutil.copy(folder / name, into)
        for name, data in content(folder).items():
            (into / name).write_bytes(data)

    return make


def observe(folder: AuditFolder, order: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    with folder.observations.writing():
        for place in order:
            folder.observations.add(observation(asked().queries[place], place))


def finish(folder: AuditFolder, *, redact: bool = False) -> str:
    folder.settle(asked(), redact=redact)
    kept = folder.queries().queries
    folder.write("audit.json", figures(folder.folder)["audit.json"].decode())
    table = "".join(f'{query.id},"{query.text}",{query.weight}\n' for query in kept)
    folder.write("queries.csv", table)
    shown = "".join(f"<li>{query.text}</li>" for query in kept)
    folder.write("report.html", f"<ul>{shown}</ul>")
    return folder.seal(**(REDACTED if redact else {})).digest


def make(path: Path, *, redact: bool = False) -> tuple[AuditFolder, str]:
    folder = AuditFolder(path)
    with folder.locked():
        folder.begin(manifest())
        observe(folder)
        return folder, finish(folder, redact=redact)


def test_a_server_that_was_updated_meanwhile_is_named_with_both_versions(tmp_path: Path) -> None:
    folder = AuditFolder(tmp_path / "audit")
    with folder.locked():
        folder.begin(manifest())
        for version in ("8.19.1", "9.0.0", "9.0.0"):
            folder.begin(manifest(versions={"server": f"Elasticsearch {version}"}))
        observe(folder)
        finish(folder)
    assert folder.manifest().versions["server"] == "Elasticsearch 8.19.1, then Elasticsearch 9.0.0"


def test_raw_files_are_for_their_owner_alone_from_the_start(tmp_path: Path) -> None:
    old = os.umask(0o002)
    try:
        folder = AuditFolder(tmp_path / "audit")
        folder.begin(manifest())
        observe(folder)
        modes = [stat.S_IMODE(it.stat().st_mode) for it in (folder.raw, *folder.raw.iterdir())]
        assert modes == [0o700, 0o600]
        folder.keep_titles({"d1": "A title"})
        finish(folder)
    finally:
        os.umask(old)
    files = {it: oct(stat.S_IMODE(it.stat().st_mode)) for it in folder.raw.iterdir()}
    assert [*files.values()] == ["0o600"] * 3
    assert stat.S_IMODE((folder.folder / "report.html").stat().st_mode) == 0o664


def test_the_same_observations_give_the_same_files(tmp_path: Path) -> None:
    first, _ = make(tmp_path / "one")
    second = AuditFolder(tmp_path / "another name")
    second.begin(manifest(started="2026-12-01T00:00:00+00:00"))
    observe(second, (3, 2, 3, 1, 0))
    finish(second)
    assert first.manifest().files == second.manifest().files


def test_only_a_whole_audit_is_sealed(tmp_path: Path) -> None:
    folder = AuditFolder(tmp_path / "audit")
    folder.begin(manifest())
    observe(folder, (0, 2))
    with pytest.raises(InputError, match="has observed 2 of 4 queries; run it again to go on"):
        finish(folder)
    observe(folder, (1, 3))
    (folder.folder / "link").symlink_to(tmp_path)
    with pytest.raises(InputError, match="holds 'link', which is no file; remove it"):
        finish(folder)


def test_a_redacted_audit_holds_no_query(tmp_path: Path) -> None:
    """Neither a text, nor an id, nor a hash that somebody who guesses a query could compare.

    All else stays, and the audit cannot go on.
    """
    folder, texts = AuditFolder(tmp_path / "audit"), ", ".join(TEXTS)
    begun = manifest(command=("fairqr", texts), inputs={texts: "0" * 64}, notes=(texts,))
    folder.begin(begun)
    observe(folder)
    digest = finish(folder, redact=True)
    assert verify(folder, digest, made_again()).problems == ()
    held = b"\n".join(it.read_bytes() for it in folder.folder.rglob("*") if it.is_file())
    for query in asked().queries:
        escaped = json.dumps(query.text)[1:-1]
        for text in (query.text, escaped, query.text.replace('"', '\\"'), query.id):
            hashes = [kind(text.encode()) for kind in (hashlib.sha256, hashlib.sha1, hashlib.md5)]
            for trace in (text, *(it.hexdigest()[:12] for it in hashes)):
                assert trace.encode() not in held
    assert begun.queries.encode() not in held
    named, seen = folder.queries().queries, folder.observations.read()
    assert [query.text for query in named] == [f"query {n}" for n in range(1, 5)]
    assert [query.id for query in named] == [it.query for it in seen]
    assert [it.message for it in seen if it.message] == ["withheld, as it may quote the query"]
    wanted = {
        query.weight: observation(query, n).relevance for n, query in enumerate(asked().queries)
    }
    assert wanted == {it.weight: found.relevance for it, found in zip(named, seen, strict=True)}
    with pytest.raises(InputError, match="holds a run with another inputs"):
        folder.begin(begun)


def test_pseudonyms_follow_from_nothing_and_are_no_ids_of_queries() -> None:
    made = tuple(AuditQuery(f"q{n:02}", f"text {n}") for n in range(50))
    given = Queries(made, lines=50, weight=50.0, design="")
    (first, ids), (_, others) = pseudonymous(given), pseudonymous(given)
    assert ids != others
    assert sorted(ids) == [query.id for query in made]
    assert [query.id for query in first.queries] == [f"qq{n:02}" for n in range(1, 51)]
