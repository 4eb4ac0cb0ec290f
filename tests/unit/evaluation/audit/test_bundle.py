"""The folder of an audit: how it is packed, what it hides, and how tampering shows."""

from __future__ import annotations

import gzip
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
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.bundle import (
    AuditedEngine,
    AuditFolder,
    AuditManifest,
    Redaction,
    without_secrets,
)
from fairqr.evaluation.audit.queries import AuditQuery, Queries
from fairqr.evaluation.audit.records import Observation
from fairqr.evaluation.audit.verifying import verify
from fairqr.retrieval.schema import Attribute
from fairqr.retrieval.table import coded

TEXTS = ("hepatitis nearby", "Jane Doe divorce", "cheap zebra saddle", 'naïve 物理 "quoted"')
RAW = ("raw/observations.jsonl.gz", "raw/queries.json.gz")
FILES = ("audit.json", "queries.csv", *RAW, "report.html")


def queries() -> tuple[AuditQuery, ...]:
    return asked().queries


def asked() -> Queries:
    made = tuple(
        AuditQuery(hashlib.sha256(text.encode()).hexdigest()[:16], text, 1.5 + place, 1 + place, 2)
        for place, text in enumerate(TEXTS)
    )
    return Queries(made, lines=12, distinct=4, weight=12.0, design="All 4 were asked.")


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
        scores=(3.0, 2.0 + place / 7, 1.0),
        relevance=(1.0, 0.25, place / 3),
        groups=dict(coded({"gender": shares}, ["gender"])),
    )


def manifest(**changes: Any) -> AuditManifest:
    made = AuditManifest(
        spec={"k": 10, "queries": "queries.txt"},
        source={"engine": "elasticsearch", "index": "people"},
        inputs={"labels.csv": "0" * 64},
        queries="1" * 64,
        engine=AuditedEngine(
            name="people",
            engine="elasticsearch",
            location="http://127.0.0.1:9200/people",
            retriever="own",
        ),
        attributes={
            "gender": Attribute(name="gender", field="gender", groups=("female", "male")),
        },
        relevance="estimated",
        server="Elasticsearch 8.19.1",
        seeds={"sample": 1},
        command=("fairqr", "audit", "--queries", "queries.txt"),
        started="2026-11-21T19:00:00+00:00",
    )
    return made.model_copy(update=changes)


def figures(folder: Path) -> dict[str, bytes]:
    """Compute something of every number of every observation, as an audit would."""
    kept = AuditFolder(folder)
    weights = {query.id: query.weight for query in kept.queries().queries}
    seen = [
        weights[found.query] * (place + 1) * sum(found.scores) * (1 + sum(found.relevance or ()))
        for place, found in enumerate(kept.observations.read())
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
    made = queries()
    with folder.observations.lines.writing():
        for place in order:
            folder.observations.lines.add(observation(made[place], place))


def finish(folder: AuditFolder, *, redact: bool = False) -> str:
    packed = folder.pack(asked(), redact=redact).queries
    folder.write("audit.json", figures(folder.folder)["audit.json"].decode())
    table = "".join(f'{query.id},"{query.text}",{query.weight}\n' for query in packed)
    folder.write("queries.csv", table)
    shown = "".join(f"<li>{query.text}</li>" for query in packed)
    folder.write("report.html", f"<ul>{shown}</ul>")
    return folder.seal()


def make(path: Path, *, redact: bool = False) -> tuple[AuditFolder, str]:
    folder = AuditFolder(path)
    with folder.locked():
        folder.begin(manifest())
        observe(folder)
        return folder, finish(folder, redact=redact)


@pytest.fixture
def audit(tmp_path: Path) -> tuple[Path, str]:
    folder, digest = make(tmp_path / "audit")
    return folder.folder, digest


def all_bytes(folder: Path) -> bytes:
    parts = []
    for path in sorted(folder.rglob("*")):
        parts.append(path.name.encode())
        if path.is_file():
            data = path.read_bytes()
            parts.append(data)
            if path.suffix == ".gz":
                parts.append(gzip.decompress(data))
    return b"\n".join(parts)


def rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], object] = len) -> None:
    """Do what somebody does who knows how a manifest is written: all hashes fit afterwards."""
    data = json.loads((folder / "manifest.json").read_text())
    for name in data["files"]:
        data["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    change(data)
    (folder / "manifest.json").write_text(AuditManifest.model_validate(data).text)


def test_an_audit_verifies(audit: tuple[Path, str]) -> None:
    folder, digest = audit
    found = verify(folder, digest, made_again())
    assert found.problems == ()
    assert (found.digest, found.files, found.problems) == (digest, len(FILES), ())
    assert digest == hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert verify(folder, f" SHA256:{digest.upper()}\n").problems == ()
    kept = AuditFolder(folder).manifest()
    assert tuple(kept.files) == FILES
    assert (kept.server, kept.redacted) == ("Elasticsearch 8.19.1", False)
    assert kept.finished >= kept.started


def test_a_server_that_was_updated_meanwhile_is_named_with_both_versions(tmp_path: Path) -> None:
    folder = AuditFolder(tmp_path / "audit")
    with folder.locked():
        folder.begin(manifest())
        for version in ("8.19.1", "9.0.0", "9.0.0"):
            folder.begin(manifest(server=f"Elasticsearch {version}"))
        observe(folder)
        finish(folder)
    assert folder.manifest().server == "Elasticsearch 8.19.1, then Elasticsearch 9.0.0"


def test_what_was_observed_comes_back_in_the_order_of_the_queries(tmp_path: Path) -> None:
    folder = AuditFolder(tmp_path / "audit")
    folder.begin(manifest())
    observe(folder, (2, 0, 3, 1))
    *others, last = queries()
    with (
        folder.observations.lines.writing()
    ):  # asked again, since it failed; and one that nobody asked for
        found = Observation(query=last.id, status="empty")
        folder.observations.lines.add(found)
        folder.observations.lines.add(Observation(query="stranger", status="empty"))
    assert folder.pack(asked()) == asked() == folder.queries()
    whole = [observation(query, place) for place, query in enumerate(others)]
    assert list(folder.observations.read()) == [*whole, found]


def test_raw_files_are_for_their_owner_alone_from_the_start(tmp_path: Path) -> None:
    def modes(path: Path) -> dict[str, str]:
        return {it.name: oct(stat.S_IMODE(it.stat().st_mode)) for it in (path / "raw").iterdir()}

    old = os.umask(0o002)
    try:
        folder = AuditFolder(tmp_path / "audit")
        folder.begin(manifest())
        observe(folder)
        assert modes(folder.folder) == {"observations.jsonl": "0o600"}
        assert stat.S_IMODE(folder.raw.stat().st_mode) == 0o700
        finish(folder)
    finally:
        os.umask(old)
    assert modes(folder.folder) == {Path(name).name: "0o600" for name in RAW}
    assert stat.S_IMODE((folder.folder / "report.html").stat().st_mode) == 0o664


def test_the_same_observations_give_the_same_files(tmp_path: Path) -> None:
    first, _ = make(tmp_path / "one")
    second = AuditFolder(tmp_path / "another name")
    second.begin(manifest(started="2026-12-01T00:00:00+00:00"))
    observe(second, (3, 2, 1, 0))
    finish(second)
    assert first.manifest().files == second.manifest().files


@pytest.mark.parametrize("name", FILES)
def test_any_changed_byte_shows(audit: tuple[Path, str], name: str) -> None:
    folder, digest = audit
    whole = (folder / name).read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 25)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        (folder / name).write_bytes(changed)
        assert verify(folder).problems == (f"The file {name} was changed.",)
        assert f"The file {name} was changed." in verify(folder, digest, made_again()).problems
    (folder / name).write_bytes(whole)
    assert verify(folder, digest, made_again()).problems == ()


def test_any_changed_byte_of_the_manifest_shows(audit: tuple[Path, str]) -> None:
    folder, digest = audit
    path = folder / "manifest.json"
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 7
        path.write_bytes(changed)
        told = verify(folder, digest).problems
        assert told[0].startswith("The digest of the audit is "), place
        assert told[0].endswith("the manifest was changed, or is that of another audit.")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_shows(audit: tuple[Path, str], name: str) -> None:
    folder, digest = audit
    (folder / name).unlink()
    assert verify(folder, digest).problems == (f"The file {name} is missing.",)
    assert f"The file {name} is missing." in verify(folder, digest, made_again()).problems


@pytest.mark.parametrize("name", ["audit.json", *RAW])
def test_a_file_that_is_gone_from_the_manifest_too_shows(
    audit: tuple[Path, str], name: str
) -> None:
    folder, digest = audit
    (folder / name).unlink()
    data = json.loads((folder / "manifest.json").read_text())
    del data["files"][name]
    (folder / "manifest.json").write_text(AuditManifest.model_validate(data).text)
    (told,) = verify(folder, make_again=made_again()).problems
    assert told.startswith("The figures cannot be computed again: ")
    assert len(verify(folder, digest).problems) == 1


@pytest.mark.parametrize("name", ["notes.txt", "raw/more.jsonl", ".hidden", "deep/er/file"])
def test_an_added_file_shows(audit: tuple[Path, str], name: str) -> None:
    folder, digest = audit
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("more")
    wanted = f"The file {name} was added: the manifest does not list it."
    assert verify(folder, digest, made_again()).problems == (wanted,)


def test_a_lock_is_no_added_file_unless_it_holds_something(audit: tuple[Path, str]) -> None:
    folder, digest = audit
    (folder / ".lock").write_text("")
    assert verify(folder, digest).problems == ()
    (folder / ".lock").write_text("smuggled")
    assert len(verify(folder, digest).problems) == 1


def test_a_link_is_not_followed(audit: tuple[Path, str], tmp_path: Path) -> None:
    folder, digest = audit
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "report.html").rename(outside / "report.html")
    (folder / "report.html").symlink_to(outside / "report.html")
    (folder / "more").symlink_to(outside)
    assert verify(folder, digest).problems == (
        "The file report.html is a link or a device, and no file.",
        "The file more was added: the manifest does not list it.",
    )


def test_a_name_cannot_write_on_the_terminal(audit: tuple[Path, str]) -> None:
    folder, _ = audit
    (folder / "evil\x1b[2J\n.txt").write_text("")
    (told,) = verify(folder).problems
    assert told.isprintable()


def swap_observations(folder: Path) -> None:
    lines = gzip.decompress((folder / RAW[0]).read_bytes()).splitlines(keepends=True)
    lines[0], lines[1] = lines[1], lines[0]
    (folder / RAW[0]).write_bytes(gzip.compress(b"".join(lines), mtime=0))


def change_a_score(folder: Path) -> None:
    text = gzip.decompress((folder / RAW[0]).read_bytes()).replace(b"3.0", b"3.1", 1)
    (folder / RAW[0]).write_bytes(gzip.compress(text, mtime=0))


def change_a_weight(folder: Path) -> None:
    text = gzip.decompress((folder / RAW[1]).read_bytes()).replace(b"1.5", b"1.25", 1)
    (folder / RAW[1]).write_bytes(gzip.compress(text, mtime=0))


def change_a_figure(folder: Path) -> None:
    text = (folder / "audit.json").read_text()
    (folder / "audit.json").write_text(text.replace("0.25", "0.26"))


def change_a_setting(data: dict[str, Any]) -> None:
    data["spec"]["k"] = 5


@pytest.mark.parametrize(
    "tamper", [swap_observations, change_a_score, change_a_weight, change_a_figure]
)
def test_who_mends_the_hashes_too_is_found_out_by_figures_and_by_the_digest(
    audit: tuple[Path, str], tamper: Callable[[Path], None]
) -> None:
    folder, digest = audit
    tamper(folder)
    assert len(verify(folder).problems) == 1
    rewrite_manifest(folder)
    assert verify(folder).problems == ()
    assert verify(folder, digest).problems[0].startswith("The digest of the audit is ")
    told = verify(folder, make_again=made_again()).problems
    assert told
    assert all("audit.json, line " in it and "raw/ gives" in it for it in told)


def test_a_setting_of_the_manifest_is_part_of_what_is_verified(audit: tuple[Path, str]) -> None:
    folder, digest = audit
    rewrite_manifest(folder, change_a_setting)
    assert verify(folder).problems == ()
    assert len(verify(folder, digest).problems) == 1
    assert verify(folder, make_again=made_again()).problems == (
        "audit.json, line 17, says '\"k\": 10', and raw/ gives '\"k\": 5'.",
    )


def test_rounding_of_another_machine_is_no_tampering(audit: tuple[Path, str]) -> None:
    folder, digest = audit

    def elsewhere(by: float) -> Callable[[Path], dict[str, bytes]]:
        def computed(path: Path) -> dict[str, bytes]:
            data = json.loads(figures(path)["audit.json"])
            data["seen"] = [value * (1 + by) for value in data["seen"]]
            return {"audit.json": json.dumps(data, indent=1).encode()}

        return computed

    assert verify(folder, digest, made_again(elsewhere(1e-14))).problems == ()
    assert verify(folder, digest, made_again(elsewhere(1e-11))).problems == ()
    told = verify(folder, digest, made_again(elsewhere(1e-7))).problems
    assert told[0].startswith("audit.json, line ")
    assert ", and raw/ gives '" in told[0]


@pytest.mark.parametrize(
    ("name", "again", "wanted"),
    [
        ("t.csv", "lean,p\n0.1,\nyes,1\n", ()),
        ("t.csv", "lean,p\n0.1000004,\nyes,1\n", ()),
        ("t.md", "lean,p\n0.1000004,\nyes,1\n", ("line 2, says '0.1,', and", "'0.1000004,'")),
        ("t.csv", "lean,p\n0.2,\nyes,1\n", ("line 2, says '0.1,', and raw/ gives '0.2,'",)),
        ("t.csv", "lean,p\n0.1,\nno,1\n", ("line 3, says 'yes,1', and raw/ gives 'no,1'",)),
        ("t.csv", "lean,p\n0.1,0\nyes,1\n", ("line 2, says '0.1,', and raw/ gives '0.1,0'",)),
        ("t.csv", "lean,p\n0.1,\n", ("line 3, says 'yes,1', and raw/ gives ''",)),
    ],
)
def test_lines_that_differ_are_named(
    audit: tuple[Path, str], name: str, again: str, wanted: tuple[str, ...]
) -> None:
    folder, _ = audit
    (folder / name).write_text("lean,p\n0.1,\nyes,1\n")
    table = made_again(lambda path: {**figures(path), name: again.encode()})
    found = [it for it in verify(folder, make_again=table).problems if "was added" not in it]
    assert bool(found) == bool(wanted)
    assert all(words in found[0] for words in wanted)


def test_a_file_that_no_audit_makes_is_named(audit: tuple[Path, str]) -> None:
    folder, _ = audit
    (folder / "report.html").rename(folder / "summary.html")
    data = json.loads((folder / "manifest.json").read_text())
    data["files"]["summary.html"] = data["files"].pop("report.html")
    made = AuditManifest.model_validate(data)
    (folder / "manifest.json").write_text(made.text)

    def without_it(path: Path, into: Path) -> None:
        shutil.copy(path / "queries.csv", into)
        (into / "audit.json").write_bytes(figures(path)["audit.json"])

    told = verify(folder, make_again=without_it)
    assert told.problems == ("The file summary.html is none that an audit makes.",)


def test_what_cannot_be_checked_is_named(audit: tuple[Path, str]) -> None:
    folder, _ = audit
    (answered,) = verify(folder, make_again=made_again()).unchecked
    assert answered.startswith("What was asked and answered: ")
    rewrite_manifest(folder, lambda data: data["versions"].update(matplotlib="3.9.0"))
    drawn = verify(folder, make_again=made_again()).unchecked[1]
    assert drawn.startswith("Pictures and the report with them: matplotlib 3.9.0 drew them, not ")


def test_many_differences_are_counted(audit: tuple[Path, str]) -> None:
    folder, _ = audit
    (folder / "audit.json").write_text("\n".join(map(str, range(20))))
    rewrite_manifest(folder)
    other = "\n".join(map(str, range(1, 21))).encode()
    told = verify(folder, make_again=made_again(lambda _: {"audit.json": other})).problems
    assert told == ("audit.json, line 1, says '0', and raw/ gives '1'; 20 lines differ.",)


def test_raw_files_that_cannot_be_read_are_told(audit: tuple[Path, str]) -> None:
    folder, _ = audit
    whole = (folder / RAW[0]).read_bytes()
    broken = [
        b"no gzip",
        whole[:-9],
        whole[:30] + b"\0\0\0" + whole[33:],
        gzip.compress(b"{}\n"),
        gzip.compress(b'{"query": "\xff"}\n'),
        gzip.compress(b"[" * 100_000),
    ]
    for data in broken:
        (folder / RAW[0]).write_bytes(data)
        rewrite_manifest(folder)
        (told,) = verify(folder, make_again=made_again()).problems
        assert told.startswith("The figures cannot be computed again: ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"files": {"../outside": "0" * 64}}, "'../outside' is no file of the folder"),
        ({"files": {"/etc/passwd": "0" * 64}}, "'/etc/passwd' is no file of the folder"),
        ({"files": {"a//b": "0" * 64}}, "'a//b' is no file of the folder"),
        ({"files": {"a": "0"}}, "'a' has no SHA-256"),
        ({"format": 2}, "at format"),
        ({"strange": 2}, "at strange"),
        ({"finished": ""}, "The audit is not finished; run it again to go on with it."),
    ],
)
def test_a_manifest_that_was_written_by_somebody_else(
    audit: tuple[Path, str], change: dict[str, Any], words: str
) -> None:
    folder, digest = audit
    data = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**data, **change}))
    told = verify(folder, digest).problems
    assert words in " ".join(told)
    assert len(told) >= 2
    (folder / "manifest.json").write_text(json.dumps(data))
    assert verify(folder).problems == (
        "The manifest was changed: it is not written as fairqr writes it.",
    )


def test_what_is_no_audit_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no audit \(No such file or directory\); make one"):
        verify(tmp_path / "nowhere")


@pytest.mark.parametrize("digest", ["", "abc", "g" * 64, "0" * 65])
def test_what_is_no_digest_fits_no_audit(audit: tuple[Path, str], digest: str) -> None:
    (told,) = verify(audit[0], digest).problems
    assert told.startswith(f"The digest of the audit is {audit[1]}, not {digest[:60]}")


@pytest.mark.parametrize("redact", [False, True])
def test_an_audit_that_was_killed_while_it_was_sealed_can_be_sealed_again(
    tmp_path: Path, redact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was killed, nothing is lost, and half written files go."""
    folder = AuditFolder(tmp_path / "audit")
    folder.begin(manifest())
    observe(folder)
    whole = folder.observations.lines.path.read_bytes()
    for writes in range(6):
        left = writes
        real = Path.replace

        def replace(path: Path, target: Path) -> Path:
            nonlocal left
            if left == 0:
                Path(f"{target.parent}/.{target.name}.0123456789abcdef").write_bytes(b"half")
                raise KeyboardInterrupt
            left -= 1
            return real(path, target)  # noqa: B023

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", replace)
            with pytest.raises(KeyboardInterrupt):
                finish(AuditFolder(folder.folder), redact=redact)
        assert folder.observations.lines.path.read_bytes() == whole
        assert AuditFolder(folder.folder).begin(manifest()).finished == ""
    digest = finish(AuditFolder(folder.folder), redact=redact)
    assert verify(folder.folder, digest, made_again()).problems == ()


def test_a_finished_audit_is_left_as_it_is(audit: tuple[Path, str]) -> None:
    folder, digest = audit
    leftover = folder / "raw" / "observations.jsonl"
    leftover.write_text("{}")  # killed before it was removed
    versions = {"fairqr": "99"}
    with AuditFolder(folder).locked():
        begun = AuditFolder(folder).begin(manifest(versions=versions, started="later"))
    assert begun.digest == digest
    assert verify(folder, digest, made_again()).problems == ()
    with pytest.raises(InputError, match="holds a run with another spec"):
        AuditFolder(folder).begin(manifest(spec={"k": 20}))
    with pytest.raises(InputError, match="holds a run with another queries"):
        AuditFolder(folder).begin(manifest(queries="2" * 64))


def test_only_a_whole_audit_is_sealed(tmp_path: Path) -> None:
    folder = AuditFolder(tmp_path / "audit")
    folder.begin(manifest())
    observe(folder, (0, 2))
    with pytest.raises(InputError, match="has observed 2 of 4 queries; run it again to go on"):
        folder.pack(asked())
    with pytest.raises(ValueError, match="was not packed"):
        folder.seal()
    observe(folder, (1, 3))
    folder.pack(asked())
    with pytest.raises(ValueError, match=r"the audit has no audit\.json"):
        folder.seal()
    (folder.folder / "link").symlink_to(tmp_path)
    with pytest.raises(InputError, match="holds 'link', which is no file; remove it"):
        finish(folder)


def test_a_redacted_audit_holds_no_query(tmp_path: Path) -> None:
    """Neither a text, nor an id, nor a hash that somebody who guesses a query could compare."""
    folder = AuditFolder(tmp_path / "audit")
    begun = manifest(
        command=("fairqr", "audit", "--query", f" {TEXTS[1].upper()} ", f"--query={TEXTS[2]}"),
        inputs={TEXTS[2]: "0" * 64},
        notes=(f"Of '{TEXTS[0]}' nothing was found.", "Ok."),
    )
    with folder.locked():
        folder.begin(begun)
        observe(folder)
        digest = finish(folder, redact=True)
    assert verify(folder.folder, digest, made_again()).problems == ()
    held = all_bytes(folder.folder)
    for query in queries():
        escaped = json.dumps(query.text)[1:-1]
        for text in (query.text, escaped, query.text.replace('"', '\\"'), query.id):
            assert text.encode() not in held
            for kind in (hashlib.sha256, hashlib.sha1, hashlib.md5):
                assert kind(text.encode()).hexdigest()[:12].encode() not in held
    assert begun.queries.encode() not in held
    kept = folder.manifest()
    assert (kept.redacted, kept.queries, kept.notes) == (True, "", ("withheld", "Ok."))
    assert kept.command == ("fairqr", "audit", "--query", "withheld", "withheld")
    assert [query.text for query in folder.queries().queries] == [f"query {n}" for n in range(1, 5)]
    messages = [found.message for found in folder.observations.read() if found.message]
    assert messages == ["withheld, as it may quote the query"]


def test_redaction_keeps_all_but_the_names(tmp_path: Path) -> None:
    folder, _ = make(tmp_path / "audit", redact=True)
    wanted = {
        (query.weight, query.lines, query.asks, found.ids, found.scores)
        for place, query in enumerate(queries())
        for found in [observation(query, place)]
    }
    seen = {
        (query.weight, query.lines, query.asks, found.ids, found.scores)
        for query, found in zip(folder.queries().queries, folder.observations.read(), strict=True)
        if query.id == found.query
    }
    assert seen == wanted


def test_a_redacted_audit_cannot_go_on(tmp_path: Path) -> None:
    folder, digest = make(tmp_path / "audit", redact=True)
    folder.observations.lines.path.write_text(queries()[0].id)  # killed before it was removed
    with (
        folder.locked(),
        pytest.raises(InputError, match="a finished audit with redacted queries; choose another"),
    ):
        folder.begin(manifest())
    assert verify(folder.folder, digest, made_again()).problems == ()


def test_pseudonyms_do_not_follow_from_anything() -> None:
    made = tuple(AuditQuery(f"t{n}", f"text {n}") for n in range(50))
    given = Queries(made, lines=50, distinct=50, weight=50.0, design="")
    first, second = Redaction.of(given), Redaction.of(given)
    assert first.ids != second.ids
    assert sorted(first.ids) == sorted(query.id for query in made)
    assert [query.id for query in first.queries.queries] == [f"q{n:02}" for n in range(1, 51)]
    assert all(
        first.pseudonyms[i] == q.id for i, q in zip(first.ids, first.queries.queries, strict=True)
    )


def test_secrets_are_withheld() -> None:
    described = {
        "url": "https://user:hunter2@host/search?q={{query}}&api_key=hunter2&size={{size}}#top",
        "credentials": "production",
        "body": {"apiKey": "hunter2", "query": {"token_count": 3, "tokenizer": "standard"}},
        "headers": [{"Authorization": "Bearer hunter2"}, "x?key=hunter2"],
        "runs": ("a.run", "b.run"),
    }
    shown = without_secrets(described)
    assert shown == {
        "url": "https://host/search?q={{query}}&api_key=withheld&size={{size}}#top",
        "credentials": "production",
        "body": {"apiKey": "withheld", "query": {"token_count": 3, "tokenizer": "standard"}},
        "headers": [{"Authorization": "withheld"}, "x?key=withheld"],
        "runs": ("a.run", "b.run"),
    }
    assert "hunter2" not in json.dumps(without_secrets(["--set", "model.api-key=hunter2"]))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab c/.-", max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
)


@given(plain)
def test_what_is_no_secret_stays(value: Any) -> None:
    assert without_secrets(value) == value
