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
MANIFEST = "manifest.json"
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
    (folder.folder / "audit.json").write_text(figures(folder.folder)["audit.json"].decode())
    table = "".join(f'{query.id},"{query.text}",{query.weight}\n' for query in kept)
    (folder.folder / "queries.csv").write_text(table)
    shown = "".join(f"<li>{query.text}</li>" for query in kept)
    (folder.folder / "report.html").write_text(f"<ul>{shown}</ul>")
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


@pytest.fixture
def audit(tmp_path: Path) -> tuple[Path, str]:
    folder, digest = make(tmp_path / "audit")
    return folder.folder, digest


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], object] = len) -> None:
    """Do what somebody does who knows how a manifest is written: all hashes fit afterwards."""
    data = json.loads((folder / MANIFEST).read_text())
    data["files"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in data["files"]
        if (folder / name).exists()
    }
    change(data)
    (folder / MANIFEST).write_text(AuditManifest.model_validate(data).text)


def rewrite(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    """Return what changes a file."""

    def change(folder: Path) -> None:
        text = (folder / name).read_bytes()
        assert old in text
        (folder / name).write_bytes(text.replace(old, new, 1))

    return change


def test_an_audit_verifies(audit: tuple[Path, str]) -> None:
    folder, digest = audit
    found = verify(AuditFolder(folder), digest, made_again())
    assert (found.digest, found.files, found.problems) == (digest, len(FILES), ())
    assert digest == hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    assert verify(AuditFolder(folder), f" SHA256:{digest.upper()}\n").problems == ()
    for wrong in ("", "abc", "g" * 64, "0" * 65):
        (told,) = verify(AuditFolder(folder), wrong).problems
        assert told.startswith(f"The digest of the audit is {digest}, not {wrong[:60]}")
    kept = AuditFolder(folder).manifest()
    assert tuple(kept.files) == FILES
    assert (kept.versions["server"], kept.redacted) == ("Elasticsearch 8.19.1", False)
    assert kept.finished >= kept.started


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_any_changed_byte_shows(audit: tuple[Path, str], name: str) -> None:
    """That of the manifest shows by the digest."""
    folder, digest = audit
    whole = (folder / name).read_bytes()
    wanted = "The digest of the audit is " if name == MANIFEST else f"The file {name} was changed."
    for place in range(0, len(whole), max(1, len(whole) // 200)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 7
        (folder / name).write_bytes(changed)
        assert verify(AuditFolder(folder), digest).problems[0].startswith(wanted), place
    assert wanted in " ".join(verify(AuditFolder(folder), digest, made_again()).problems)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_shows(audit: tuple[Path, str], name: str) -> None:
    folder, digest = audit
    (folder / name).unlink()
    assert verify(AuditFolder(folder), digest).problems == (f"The file {name} is missing.",)
    told = verify(AuditFolder(folder), digest, made_again()).problems
    assert f"The file {name} is missing." in told
    if name in ("audit.json", *RAW):  # gone from the manifest, too
        change_manifest(folder)
        (told,) = verify(AuditFolder(folder), make_again=made_again()).problems
        wanted = (
            "The figures cannot be computed again: " if name in RAW else "The file audit.json is"
        )
        assert told.startswith(wanted)


@pytest.mark.parametrize(
    "name", ["notes.html", "raw/more.jsonl", ".hidden", "deep/er/file", ".lock"]
)
def test_an_added_file_shows(audit: tuple[Path, str], name: str) -> None:
    folder, digest = audit
    (folder / ".lock").write_text("")  # that of a process
    (folder / f"{MANIFEST}.sig").write_text("a signature")
    assert verify(AuditFolder(folder), digest, made_again()).problems == ()
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("more")
    wanted = f"The file {name} was added: the manifest does not list it."
    assert verify(AuditFolder(folder), digest, made_again()).problems == (wanted,)
    # Whoever adds a file may list it, too.
    change_manifest(folder, lambda data: data["files"].update({name: "0" * 64}))
    change_manifest(folder)
    told = verify(AuditFolder(folder), make_again=made_again()).problems
    assert f"The file {name} is none that follows from raw/." in told


def test_what_is_no_file_is_not_read_and_a_name_cannot_write_on_the_terminal(
    audit: tuple[Path, str], tmp_path: Path
) -> None:
    folder, digest = audit
    (folder / "report.html").rename(tmp_path / "report.html")
    (folder / "report.html").symlink_to(tmp_path / "report.html")
    (folder / "evil\x1b[2J\n").symlink_to(tmp_path)
    (folder / RAW[0]).unlink()
    os.mkfifo(folder / RAW[0])
    told = verify(AuditFolder(folder), digest, made_again()).problems
    assert [it.endswith(" is a link or a device, and no file.") for it in told] == [True] * 3
    assert all(map(str.isprintable, told))


@pytest.mark.parametrize(
    "tamper",
    [
        rewrite(RAW[0], b"0.25", b"0.26"),
        rewrite(RAW[1], b"1.5", b"1.25"),
        rewrite("audit.json", b"0.25", b"0.26"),
        lambda folder: change_manifest(folder, lambda data: data["spec"].update(k=5)),
    ],
    ids=["relevance", "weight", "figure", "setting"],
)
def test_who_mends_the_hashes_too_is_found_out_by_figures_and_by_the_digest(
    audit: tuple[Path, str], tamper: Callable[[Path], None]
) -> None:
    folder, digest = audit
    tamper(folder)
    change_manifest(folder)
    assert verify(AuditFolder(folder)).problems == ()
    assert verify(AuditFolder(folder), digest).problems[0].startswith("The digest of the audit is ")
    (told,) = verify(AuditFolder(folder), make_again=made_again()).problems
    assert told.startswith("audit.json, line ")
    assert ", and raw/ gives '" in told


@pytest.mark.parametrize(
    ("name", "again", "wanted"),
    [
        ("t.csv", "lean,p\n0.1000004,1e-17\n1234567,yes\n", None),
        ("t.json", "lean,p\n0.10000000001,0\n1234567,yes\n", None),
        ("t.json", "lean,p\n0.1000004,0\n1234567,yes\n", (2, "0.1", "0.1000004")),
        ("t.md", "lean,p\n0.1000004,0\n1234567,yes\n", (2, "0.1", "0.1000004")),
        ("t.md", "lean,p\n0.10,0\n1234567,yes\n", (2, "0.1", "0.10")),
        ("t.md", "lean,p\n0.1,0\n1234567,yes", (3, "", "")),
        ("t.csv", "lean,p\n0.2,0\n1234567,yes\n", (2, "0.1", "0.2")),
        ("t.csv", "lean,p\n0.1,0\n1234568,yes\n", (3, "1234567", "1234568")),
        ("t.csv", "lean,p\n0.1,0\n1234567,no\n", (3, "yes", "no")),
        ("t.csv", "lean,p\n0.1,0,2\n1234567,yes\n", (2, "", ",")),
        ("t.csv", "lean,p\n0.1,0\n", (3, "1234567", "")),
    ],
)
def test_lines_that_differ_are_named_and_rounding_of_another_machine_is_no_tampering(
    audit: tuple[Path, str], name: str, again: str, wanted: tuple[int, str, str] | None
) -> None:
    """Measured numbers may differ by rounding, in tables alone; ids and counts may not."""
    folder, _ = audit
    (folder / name).write_text("lean,p\n0.1,0\n1234567,yes\n")
    change_manifest(folder, lambda data: data["files"].update({name: "0" * 64}))
    change_manifest(folder)
    table = made_again(lambda path: {**figures(path), name: again.encode()})
    sentence = f"{name}, line %d, says '%s', and raw/ gives '%s'."
    assert verify(AuditFolder(folder), make_again=table).problems == (
        (sentence % wanted,) if wanted else ()
    )


def test_what_cannot_be_checked_is_named(audit: tuple[Path, str]) -> None:
    folder, digest = audit
    answered, made = verify(AuditFolder(folder), make_again=made_again()).unchecked
    assert answered.startswith("What was asked and answered: ")
    assert made.startswith("When and how it was made: give the digest")
    assert verify(AuditFolder(folder), digest, made_again()).unchecked == (answered,)
    change_manifest(folder, lambda data: data["versions"].update(matplotlib="3.9.0"))
    drawn = verify(AuditFolder(folder), make_again=made_again()).unchecked[2]
    assert drawn.startswith("The lines of pictures: matplotlib 3.9.0 drew them, not ")


PICTURE = '<svg width="3.5pt"><path d="M 0 1"/><text x="1">70%</text></svg>'


@pytest.mark.parametrize(
    "forged",
    [
        f"<svg><foreignObject><h1>All is well.</h1></foreignObject></svg>{PICTURE}",
        f"<svgx><h1>All is well.</h1></svg>{PICTURE}",
        PICTURE.replace("70%", "10%"),
        PICTURE.replace("<path", "<style>h1 {display: none}</style><path"),
        PICTURE.replace("<svg ", '<svg style="position: fixed" '),
    ],
)
def test_another_version_of_matplotlib_hides_no_forged_words(
    audit: tuple[Path, str], forged: str
) -> None:
    folder, _ = audit
    again = made_again(lambda path: {**figures(path), "report.html": PICTURE.encode()})
    for shown in (PICTURE.replace("0 1", "0 2").replace("3.5", "4"), forged):
        (folder / "report.html").write_text(shown)
        change_manifest(folder, lambda data: data["versions"].update(matplotlib="3.9.0"))
        problems = verify(AuditFolder(folder), make_again=again).problems
        assert bool(problems) == (shown == forged)


def test_raw_files_that_cannot_be_read_are_one_sentence(audit: tuple[Path, str]) -> None:
    folder, _ = audit
    whole = (folder / RAW[0]).read_bytes()
    lines = [b"{}\n", b'{"query": "\xff"}\n', b"[" * 100_000 + b"\n"]
    for data in [b"\x1f\x8b packed", whole[:-9], whole[:30] + b"\0\0\0" + whole[33:], *lines]:
        (folder / RAW[0]).write_bytes(data)
        change_manifest(folder)
        (told,) = verify(AuditFolder(folder), make_again=made_again()).problems
        assert told.startswith("The figures cannot be computed again: ")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        *(({"files": {it: "0" * 64}}, f"file {it} is missing") for it in ("../a", "/etc/passwd")),
        ({"files": {}}, "was added"),
        ({"finished": ""}, "The audit is not finished; run it again."),
        ({"format": 2}, "another version (at format)"),
        ({"strange": 2}, "another version (at strange)"),
    ],
)
def test_a_manifest_that_was_written_by_somebody_else(
    audit: tuple[Path, str], change: dict[str, Any], told: str
) -> None:
    folder, digest = audit
    data = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**data, **change}))
    (changed,) = verify(AuditFolder(folder), digest, made_again()).problems
    assert changed.startswith("The digest of the audit is ")
    try:
        problems = verify(AuditFolder(folder), make_again=made_again()).problems
    except InputError as error:
        problems = (str(error),)
    assert any(told in it for it in problems)
