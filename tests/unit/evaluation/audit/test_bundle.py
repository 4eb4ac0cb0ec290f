"""The folder of an audit: what it keeps, what it hides, and how tampering shows."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.bundle import AuditFolder, AuditManifest, pseudonymous
from fairqr.evaluation.audit.finishing import make_again
from fairqr.evaluation.audit.queries import Queries, collect_queries
from fairqr.evaluation.experiments.folder import versions
from fairqr.evaluation.experiments.verifying import verify
from fairqr.retrieval.sources.query_files import QueryRow
from tests.unit.evaluation.audit import examples
from tests.unit.evaluation.audit.examples import observations_of, queries_of, sealed

TEXTS = ("hepatitis nearby", "Jane Doe divorce", "cheap zebra saddle", 'naïve 物理 "quoted"')
OBSERVATIONS, MANIFEST = "raw/observations.jsonl", "manifest.json"
QUERIES = queries_of(12, alike=True)
SPEC = examples.spec_of(attributes=("gender",), rerank=3)

Forge = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "out"
    titles = {f"d{number}": f"Title {number}" for number in range(40)}
    sealed(folder, QUERIES, observations_of(QUERIES), spec=SPEC, titles=titles)
    return folder


@pytest.fixture
def audit(whole: Path, tmp_path: Path) -> tuple[AuditFolder, str]:
    """A finished audit, and its digest."""
    copied = AuditFolder(Path(shutil.copytree(whole, tmp_path / "audit")))
    return copied, copied.manifest().digest


def rewrite(name: str, old: str, new: str) -> Forge:
    """Return what changes the first place in a file that a pattern finds."""

    def change(folder: Path) -> None:
        text, found = re.subn(old, new, (folder / name).read_text(), count=1)
        assert found
        (folder / name).write_text(text)

    return change


def replaced(name: str, changed: Callable[[bytes], bytes]) -> Forge:
    return lambda folder: (folder / name).write_bytes(changed((folder / name).read_bytes()))


def added(name: str) -> Forge:
    def add(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("more")
        falsify(folder, lambda data: data["files"].update({name: "0" * 64}))

    return add


def falsify(folder: Path, change: Callable[[dict[str, Any]], object] = len) -> None:
    """Do what somebody does who knows how a manifest is written: all hashes fit afterwards."""
    data = json.loads((folder / MANIFEST).read_text())
    change(data)
    files = {name: folder / name for name in data["files"] if (folder / name).exists()}
    data["files"] = {n: hashlib.sha256(it.read_bytes()).hexdigest() for n, it in files.items()}
    (folder / MANIFEST).write_text(AuditManifest.model_validate(data).text)


@pytest.mark.promise("audit")
def test_an_untouched_audit_verifies(audit: tuple[AuditFolder, str]) -> None:
    """`verify` makes every figure, table, picture and the report again from what was observed, and
    finds nothing wrong with an audit that nobody changed.
    """
    folder, digest = audit
    assert digest == hashlib.sha256((folder.folder / MANIFEST).read_bytes()).hexdigest()
    (folder.folder / ".lock").write_text("")  # that of a process
    (folder.folder / f"{MANIFEST}.sig").write_text("a signature")
    found = verify(folder, f" SHA256:{digest.upper()}\n", make_again)
    assert (found.digest, found.files, found.problems) == (digest, 9, ())
    for wrong in ("", "abc", "g" * 64, "0" * 65):
        (told,) = verify(folder, wrong).problems
        assert told.startswith(f"The digest of the audit is {digest}, not {wrong[:60]}")
    asked, signature = found.unchecked
    assert asked.startswith("What was asked and answered: ")
    assert signature.startswith("The signature manifest.json.sig")
    assert verify(folder).unchecked[2].startswith("When and how it was made: give the digest")


@pytest.mark.promise("audit")
def test_any_changed_missing_or_added_file_shows(audit: tuple[AuditFolder, str]) -> None:
    """`verify` finds any file that was changed, is missing or was added.

    A changed byte of the manifest shows by the digest.
    """
    folder, digest = audit
    for name in (*folder.manifest().files, MANIFEST):
        path = folder.folder / name
        whole = path.read_bytes()
        wanted = f"The file {name} was changed."
        for place in range(0, len(whole), max(1, len(whole) // 50)):
            changed = bytearray(whole)
            changed[place] ^= 1 << place % 7
            path.write_bytes(changed)
            told = verify(folder, digest).problems[0]
            assert told.startswith("The digest of the " if name == MANIFEST else wanted), place
        path.unlink()
        if name != MANIFEST:
            assert verify(folder, digest).problems == (f"The file {name} is missing.",)
        path.write_bytes(whole)
    for name in ("notes.html", "raw/more.jsonl", ".hidden", "deep/er/file", ".lock"):
        path = folder.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("more")
        wanted = f"The file {name} was added: the manifest does not list it."
        assert verify(folder, digest).problems == (wanted,)
        path.unlink()


@pytest.fixture(scope="module")
def again(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What follows from the observations."""
    made = tmp_path_factory.mktemp("again")
    make_again(whole, made)
    return made


FOLLOWING = ("audit.json", "results.csv", "queries.csv", "report.md", "report.html")


@pytest.mark.promise("audit")
@pytest.mark.parametrize("name", [*FOLLOWING, "figures/exposure.svg"])
def test_a_forged_word_shows_though_its_hash_fits(
    audit: tuple[AuditFolder, str], again: Path, name: str
) -> None:
    """`verify` finds a changed word or number wherever it stands in a table, a picture or the
    report, even if all hashes were made to fit.

    Wherever in the file.
    """
    folder, digest = audit
    path = folder.folder / name
    whole = path.read_text()
    places = [found.start() for found in re.finditer(r"\w+", whole)]
    for place in places[:: len(places) // 7]:
        path.write_text(f"{whole[:place]}9{whole[place:]}")
        falsify(folder.folder)
        assert verify(folder).problems == ()
        assert verify(folder, digest).problems[0].startswith("The digest of the audit is ")
        told, *_ = verify(folder, make_again=copying(again)).problems
        assert told.startswith(f"{name}, line "), place
    path.unlink()
    falsify(folder.folder)
    assert verify(folder, make_again=copying(again)).problems == (f"The file {name} is missing.",)


def copying(made: Path) -> Callable[[Path, Path], object]:
    return lambda _, into: shutil.copytree(made, into, dirs_exist_ok=True)


AGAIN = "The figures cannot be computed again: "
FORGERIES: list[tuple[str, Forge]] = [
    ("audit.json, line ", rewrite(OBSERVATIONS, r'("relevance":\[)[\d.]+', r"\g<1>0.0")),
    ("audit.json, line ", lambda it: falsify(it, lambda data: data["spec"].update(k=5))),
    ("report.html, line ", rewrite("raw/titles.json", "Title", "Name")),
    ("report.html, line ", lambda it: falsify(it, lambda data: data.update(layout="dsa"))),
    *(
        (f"The file {name} does not follow from raw/.", added(name))
        for name in ("notes.html", "raw/more.jsonl", ".hidden")
    ),
    (
        f"{AGAIN}raw/queries.json has other",
        rewrite("raw/queries.json", r'"weight":1\.0', '"weight":2'),
    ),
    (f"{AGAIN}raw/queries.json has other", rewrite("raw/queries.json", "town 1", "town 9")),
    (
        f"{AGAIN}raw/ has an answer to a query that was not asked",
        replaced(OBSERVATIONS, lambda it: it.splitlines(True)[0].replace(b'"q1"', b'"q0"') + it),
    ),
    (AGAIN, lambda folder: (folder / "raw/queries.json").unlink()),
    *(
        (AGAIN, replaced(OBSERVATIONS, changed))
        for changed in (
            lambda it: it[:-9],
            lambda it: b"[" * 100_000 + b"\n",
        )
    ),
    # What is said of a document does not fit what is said of others.
    *(
        (AGAIN, rewrite(OBSERVATIONS, *changed))
        for changed in (
            ('"status":"ok"', '"status":"empty"'),
            (r'"ids":\[("d\d+"),', r'"ids":[\1,\1,'),
            (r'"relevance":\[[\d.]+', '"relevance":[1.5'),
            (r'"rows":\[\d', '"rows":[9'),
            (r'"patterns":\[\[[\d.]+', '"patterns":[[2'),
            (r'"patterns":\[\[[\d.]+,', '"patterns":[['),
        )
    ),
]


@pytest.mark.promise("audit")
@pytest.mark.parametrize(("told", "forge"), FORGERIES)
def test_forged_observations_show_though_hashes_fit(
    audit: tuple[AuditFolder, str], told: str, forge: Forge
) -> None:
    """`verify` finds changed observations and a changed manifest, even if all hashes were made to
    fit, because the figures do not follow from them.
    """
    folder, _ = audit
    forge(folder.folder)
    falsify(folder.folder)
    assert verify(folder).problems == ()
    problems = verify(folder, make_again=make_again).problems
    assert any(it.startswith(told) for it in problems), problems


def test_links_and_devices_are_not_read(audit: tuple[AuditFolder, str], tmp_path: Path) -> None:
    folder, digest = audit
    (folder.folder / "report.html").rename(tmp_path / "report.html")
    (folder.folder / "report.html").symlink_to(tmp_path / "report.html")
    (folder.folder / "evil\x1b[2J\n").symlink_to(tmp_path)
    (folder.folder / OBSERVATIONS).unlink()
    os.mkfifo(folder.folder / OBSERVATIONS)
    told = verify(folder, digest, make_again).problems
    assert [it.endswith(" is a link or a device, and no file.") for it in told] == [True] * 3
    assert all(map(str.isprintable, told))


def test_very_large_files_are_not_read(
    audit: tuple[AuditFolder, str],
) -> None:
    """They have no blocks, so only reading them would take long."""
    folder, digest = audit
    for name in ("extra", "report.html"):
        (folder.folder / name).touch()
        os.truncate(folder.folder / name, 2**40)
    told = verify(folder, digest).problems
    assert told == (
        "The file extra was added: the manifest does not list it.",
        "The file report.html was changed.",
    )


@pytest.mark.parametrize("name", [MANIFEST, f"{MANIFEST}.sig"])
def test_a_strange_manifest_or_signature_is_not_read(
    audit: tuple[AuditFolder, str], tmp_path: Path, name: str
) -> None:
    """``ssh-keygen`` would wait for a pipe, and read a device, for ever."""
    folder, digest = audit
    path = folder.folder / name
    path.unlink(missing_ok=True)
    for make in (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: (path.touch(), os.truncate(path, 5 * 2**30)),  # without blocks
    ):
        make()
        for given in (None, digest):
            with pytest.raises(InputError, match="is no file, or larger than 64 MB"):
                verify(folder, given, allowed_signers=tmp_path / "signers")
        path.unlink()


TABLE = "ranking_gap,p\n0.1,0\n1234567,yes\n"
PICTURE = '<svg width="3.5pt"><path d="M 0 1"/><text x="1">70%</text></svg>'


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    ("name", "shown", "again", "wanted"),
    [
        # Measured numbers may differ by rounding, in tables alone; ids and counts may not.
        ("t.csv", TABLE, "ranking_gap,p\n0.1000004,1e-17\n1234567,yes\n", None),
        ("t.json", TABLE, "ranking_gap,p\n0.10000000001,0\n1234567,yes\n", None),
        ("t.json", TABLE, "ranking_gap,p\n0.1000004,0\n1234567,yes\n", (2, "0.1", "0.1000004")),
        ("t.md", TABLE, "ranking_gap,p\n0.1000004,0\n1234567,yes\n", (2, "0.1", "0.1000004")),
        ("t.md", TABLE, "ranking_gap,p\n0.1,0\n1234567,yes", (3, "", "")),
        ("t.csv", TABLE, "ranking_gap,p\n0.2,0\n1234567,yes\n", (2, "0.1", "0.2")),
        ("t.csv", TABLE, "ranking_gap,p\n0.1,0\n1234568,yes\n", (3, "1234567", "1234568")),
        ("t.csv", TABLE, "ranking_gap,p\n0.1,0,2\n1234567,yes\n", (2, "", ",")),
        ("t.csv", TABLE, "ranking_gap,p\n0.1,0\n", (3, "1234567", "")),
        # Another version of matplotlib draws other lines, and hides no forged words.
        ("t.html", PICTURE.replace("0 1", "0 2").replace("3.5", "4"), PICTURE, None),
        *(
            ("t.html", shown, PICTURE, "forged")
            for shown in (
                f"<svg><foreignObject><h1>All is well.</h1></foreignObject></svg>{PICTURE}",
                f"<svgx><h1>All is well.</h1></svg>{PICTURE}",
                PICTURE.replace("70%", "10%"),
                PICTURE.replace("<path", "<style>h1 {display: none}</style><path"),
                PICTURE.replace("<svg ", '<svg style="position: fixed" '),
            )
        ),
    ],
)
def test_another_machine_may_round_but_not_reword(
    audit: tuple[AuditFolder, str], name: str, shown: str, again: str, wanted: Any
) -> None:
    """`verify` forgives another machine's rounding, and no version of matplotlib hides a forged
    word.
    """
    folder, _ = audit
    (folder.folder / name).write_text(shown)
    drawn = versions() | {"matplotlib": "3.9.0"} if name == "t.html" else versions()
    falsify(folder.folder, lambda it: it.update(files=it["files"] | {name: ""}, versions=drawn))
    found = verify(folder, make_again=lambda _, into: (into / name).write_text(again))
    told = "".join(it for it in found.problems if it.startswith(name))
    if isinstance(wanted, tuple):
        assert told == f"{name}, line %d, says '%s', and raw/ gives '%s'." % wanted
    else:
        assert told.startswith("t.html, line ") if wanted else not told
    said = "The lines of pictures, which matplotlib 3.9.0 drew."
    assert any(it.startswith(said) for it in found.unchecked) == (name == "t.html")


def test_a_manifest_by_somebody_else_is_refused(audit: tuple[AuditFolder, str]) -> None:
    folder, digest = audit
    path = folder.folder / MANIFEST
    whole = json.loads(path.read_text())
    for change, told in (
        ({"files": {"../a": "0" * 64}}, "The file ../a is missing."),
        ({"files": {"/etc/passwd": "0" * 64}}, "The file /etc/passwd is missing."),
        ({"finished": ""}, "The audit is not finished; run it again."),
        ({"format": 1}, "another version (at format)"),
        ({"strange": 2}, "another version (at strange)"),
    ):
        path.write_text(json.dumps(whole | change))
        assert verify(folder, digest).problems[0].startswith("The digest of the audit is ")
        try:
            problems = verify(folder, make_again=make_again).problems
        except InputError as error:
            problems = (str(error),)
        assert any(told in it for it in problems)


@pytest.mark.promise("audit")
def test_raw_files_are_for_their_owner_alone(
    tmp_path: Path,
) -> None:
    """Only the owner may read `raw/`."""
    folder, old = AuditFolder(tmp_path / "audit"), os.umask(0o002)
    try:
        folder.begin(examples.manifest_of(QUERIES, SPEC))
        with folder.observations.writing():
            folder.observations.add(observations_of(QUERIES)[0])
        paths = (folder.folder / "raw", *folder.folder.glob("raw/*"))
        assert [stat.S_IMODE(it.stat().st_mode) for it in paths] == [0o700, 0o600]
        with pytest.raises(InputError, match="has observed 1 of 12 queries; run it again to go on"):
            folder.settle(QUERIES)
        sealed(folder.folder, QUERIES, observations_of(QUERIES)[1:], spec=SPEC)
    finally:
        os.umask(old)
    assert {stat.S_IMODE(it.stat().st_mode) for it in folder.folder.glob("raw/*")} == {0o600}
    assert stat.S_IMODE((folder.folder / "report.html").stat().st_mode) == 0o664


@pytest.mark.promise("audit")
def test_a_redacted_audit_holds_no_query(tmp_path: Path) -> None:
    """A redacted audit holds no query, and cannot be continued.

    Neither a text, nor an id, nor a hash that somebody who guesses a query could compare.

    All else stays, and the audit cannot go on.
    """
    rows = [QueryRow(number, None, text, 1.5 + number) for number, text in enumerate(TEXTS)]
    queries, folder = collect_queries(rows, weighted_by="count"), AuditFolder(tmp_path / "audit")
    observed = observations_of(queries, failed=(queries.queries[3].id,))
    texts = ", ".join(TEXTS)
    quoting = {"command": (texts,), "inputs": {texts: "0" * 64}, "spec": SPEC}
    audit = sealed(folder.folder, queries, observed, redact=True, **quoting)
    assert verify(folder, audit.digest, make_again).problems == ()
    held = b"\n".join(it.read_bytes() for it in folder.folder.rglob("*") if it.is_file())
    for query in queries.queries:
        for text in (query.text, json.dumps(query.text)[1:-1], query.text.replace('"', '\\"')):
            hashes = [kind(text.encode()) for kind in (hashlib.sha256, hashlib.sha1, hashlib.md5)]
            for trace in (text, query.id, *(it.hexdigest()[:12] for it in hashes)):
                assert trace.encode() not in held
    assert queries.fingerprint.encode() not in held
    named, seen = audit.queries.queries, folder.observations.read()
    assert [query.text for query in named] == [f"query {n}" for n in range(1, 5)]
    assert [query.id for query in named] == [it.query for it in seen]
    assert [it.message for it in seen if it.message] == ["withheld, as it may quote the query"]
    wanted = {it.weight: found.ids for it, found in zip(queries.queries, observed, strict=True)}
    assert wanted == {it.weight: found.ids for it, found in zip(named, seen, strict=True)}
    with pytest.raises(InputError, match="holds a run with another inputs"):
        folder.begin(examples.manifest_of(queries, **quoting))
    # Pseudonyms follow from nothing, and are no ids of queries.
    plain = Queries(queries_of(50).queries, lines=50, weight=50.0, design="")
    (first, ids), (_, others) = pseudonymous(plain), pseudonymous(plain)
    assert ids != others
    assert [query.id for query in first.queries] == [f"qq{n:02}" for n in range(1, 51)]
