"""The folder of an audit: what it keeps, what it hides, and how tampering shows."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.bundle import AuditFolder, AuditManifest, Observation, pseudonymous
from fairqr.evaluation.audit.finishing import make_again
from fairqr.evaluation.audit.queries import AuditQuery, Queries, collect_queries
from fairqr.evaluation.experiments.folder import versions
from fairqr.evaluation.experiments.verifying import Verification, verify
from fairqr.retrieval.sources.query_files import QueryRow
from tests.unit.evaluation.audit import examples
from tests.unit.evaluation.audit.examples import observations_of, queries_of, sealed

TEXTS = ("hepatitis nearby", "Jane Doe divorce", "cheap zebra saddle", 'naïve 物理 "quoted"')
OBSERVATIONS = "raw/observations.jsonl"
MANIFEST = "manifest.json"
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
        text, count = re.subn(old, new, (folder / name).read_text(), count=1)
        assert count == 1
        (folder / name).write_text(text)

    return change


def replace_content(name: str, changed: Callable[[bytes], bytes]) -> Forge:
    """Return a function that rewrites a file with its content changed."""
    return lambda folder: (folder / name).write_bytes(changed((folder / name).read_bytes()))


def add_file(name: str) -> Forge:
    """Return what adds a file and lists it in the manifest."""

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
    data["files"] = {n: hashlib.sha256(path.read_bytes()).hexdigest() for n, path in files.items()}
    (folder / MANIFEST).write_text(AuditManifest.model_validate(data).text)


@pytest.mark.promise("audit")
def test_an_untouched_audit_verifies(audit: tuple[AuditFolder, str]) -> None:
    """`verify` makes every figure, table, picture and the report again from what was observed, and
    finds nothing wrong with an audit that nobody changed.
    """
    folder, digest = audit
    assert digest == hashlib.sha256((folder.folder / MANIFEST).read_bytes()).hexdigest()
    (folder.folder / ".lock").write_text("")  # that of a process

    verification = verify(folder, f" SHA256:{digest.upper()}\n", make_again)

    assert verification.digest == digest
    assert verification.files == 9
    assert verification.problems == ()


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param("", id="nothing"),
        pytest.param("abc", id="too short"),
        pytest.param("g" * 64, id="no hash"),
        pytest.param("0" * 65, id="too long"),
    ],
)
def test_another_digest_is_a_problem(audit: tuple[AuditFolder, str], wrong: str) -> None:
    folder, digest = audit

    (problem,) = verify(folder, wrong).problems

    assert problem.startswith(f"The digest of the audit is {digest}, not {wrong[:60]}")


def test_what_was_not_checked_is_named(audit: tuple[AuditFolder, str]) -> None:
    folder, digest = audit
    (folder.folder / f"{MANIFEST}.sig").write_text("a signature")

    verification = verify(folder, digest, make_again)

    assert verification.problems == ()
    assert verification.files == 9
    observations, signature = verification.unchecked
    assert observations.startswith("What was asked and answered: ")
    assert signature.startswith("The signature manifest.json.sig")
    assert verify(folder).unchecked[2].startswith("When and how it was made: give the digest")


@pytest.mark.promise("audit")
def test_any_changed_file_shows(audit: tuple[AuditFolder, str]) -> None:
    """`verify` finds any file that was changed, and a changed manifest by the digest."""
    folder, digest = audit
    for name in (*folder.manifest().files, MANIFEST):
        path = folder.folder / name
        content = path.read_bytes()
        expected = f"The file {name} was changed."
        if name == MANIFEST:
            expected = "The digest of the "
        for position in range(0, len(content), max(1, len(content) // 50)):
            changed = bytearray(content)
            changed[position] ^= 1 << position % 7
            path.write_bytes(changed)
            assert verify(folder, digest).problems[0].startswith(expected), position
        path.write_bytes(content)


@pytest.mark.promise("audit")
def test_any_missing_file_shows(audit: tuple[AuditFolder, str]) -> None:
    """`verify` finds any file that is missing."""
    folder, digest = audit
    for name in folder.manifest().files:
        path = folder.folder / name
        content = path.read_bytes()
        path.unlink()
        assert verify(folder, digest).problems == (f"The file {name} is missing.",)
        path.write_bytes(content)


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    "name", ["notes.html", "raw/more.jsonl", ".hidden", "deep/er/file", ".lock"]
)
def test_any_added_file_shows(audit: tuple[AuditFolder, str], name: str) -> None:
    """`verify` finds any file that was added."""
    folder, digest = audit
    path = folder.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("more")

    problems = verify(folder, digest).problems

    assert problems == (f"The file {name} was added: the manifest does not list it.",)


@pytest.fixture(scope="module")
def again(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What follows from the observations."""
    folder = tmp_path_factory.mktemp("again")
    make_again(whole, folder)
    return folder


FOLLOWING = ("audit.json", "results.csv", "queries.csv", "report.md", "report.html")


@pytest.mark.promise("audit")
@pytest.mark.parametrize("name", [*FOLLOWING, "figures/exposure.svg"])
def test_a_forged_word_shows_though_its_hash_fits(
    audit: tuple[AuditFolder, str], again: Path, name: str
) -> None:
    """`verify` finds a changed word or number wherever it stands in a table, a picture or the
    report, even if all hashes were made to fit.

    The word is changed at several places of the file.
    """
    folder, digest = audit
    path = folder.folder / name
    content = path.read_text()
    places = [word.start() for word in re.finditer(r"\w+", content)]
    for position in places[:: len(places) // 7]:
        path.write_text(f"{content[:position]}9{content[position:]}")
        falsify(folder.folder)
        assert verify(folder).problems == ()
        assert verify(folder, digest).problems[0].startswith("The digest of the audit is ")
        problem, *_ = verify(folder, make_again=copying(again)).problems
        assert problem.startswith(f"{name}, line "), position
    path.unlink()
    falsify(folder.folder)

    assert verify(folder, make_again=copying(again)).problems == (f"The file {name} is missing.",)


def copying(folder: Path) -> Callable[[Path, Path], object]:
    return lambda _, into: shutil.copytree(folder, into, dirs_exist_ok=True)


AGAIN = "The figures cannot be computed again: "
OTHER_QUERIES = f"{AGAIN}raw/queries.json has other"
UNASKED = f"{AGAIN}raw/ has an answer to a query that was not asked"
FORGERIES = [
    pytest.param(
        "audit.json, line ",
        rewrite(OBSERVATIONS, r'("relevance":\[)[\d.]+', r"\g<1>0.0"),
        id="another relevance",
    ),
    pytest.param(
        "audit.json, line ",
        lambda folder: falsify(folder, lambda data: data["spec"].update(k=5)),
        id="another k",
    ),
    pytest.param(
        "report.html, line ", rewrite("raw/titles.json", "Title", "Name"), id="another title"
    ),
    pytest.param(
        "report.html, line ",
        lambda folder: falsify(folder, lambda data: data.update(layout="dsa")),
        id="another layout",
    ),
    *(
        pytest.param(
            f"The file {name} does not follow from raw/.", add_file(name), id=f"{name} added"
        )
        for name in ("notes.html", "raw/more.jsonl", ".hidden")
    ),
    pytest.param(
        OTHER_QUERIES,
        rewrite("raw/queries.json", r'"weight":1\.0', '"weight":2'),
        id="another weight",
    ),
    pytest.param(
        OTHER_QUERIES, rewrite("raw/queries.json", "town 1", "town 9"), id="another query"
    ),
    pytest.param(
        UNASKED,
        replace_content(
            OBSERVATIONS, lambda text: text.splitlines(True)[0].replace(b'"q1"', b'"q0"') + text
        ),
        id="an answer to no query",
    ),
    pytest.param(
        AGAIN, lambda folder: (folder / "raw/queries.json").unlink(), id="no queries at all"
    ),
    pytest.param(AGAIN, replace_content(OBSERVATIONS, lambda text: text[:-9]), id="cut off"),
    pytest.param(
        AGAIN,
        replace_content(OBSERVATIONS, lambda text: b"[" * 100_000 + b"\n"),
        id="deeply nested",
    ),
    # What is stated of a document does not fit what is stated of others.
    *(
        pytest.param(AGAIN, rewrite(OBSERVATIONS, old, new), id=name)
        for name, old, new in (
            ("found nothing", '"status":"ok"', '"status":"empty"'),
            ("an id twice", r'"ids":\[("d\d+"),', r'"ids":[\1,\1,'),
            ("a relevance above 1", r'"relevance":\[[\d.]+', '"relevance":[1.5'),
            ("a row of no pattern", r'"rows":\[\d', '"rows":[9'),
            ("a share above 1", r'"patterns":\[\[[\d.]+', '"patterns":[[2'),
            ("a short pattern", r'"patterns":\[\[[\d.]+,', '"patterns":[['),
        )
    ),
]


@pytest.mark.promise("audit")
@pytest.mark.parametrize(("problem", "forge"), FORGERIES)
def test_forged_observations_show_though_hashes_fit(
    audit: tuple[AuditFolder, str], problem: str, forge: Forge
) -> None:
    """`verify` finds changed observations and a changed manifest, even if all hashes were made to
    fit, because the figures do not follow from them.
    """
    folder, _ = audit
    forge(folder.folder)
    falsify(folder.folder)

    assert verify(folder).problems == ()
    problems = verify(folder, make_again=make_again).problems
    assert any(sentence.startswith(problem) for sentence in problems), problems


def truncate(path: Path, size: int) -> None:
    """Give a file a size, without blocks."""
    path.touch()
    os.truncate(path, size)


def test_links_and_devices_are_not_read(audit: tuple[AuditFolder, str], tmp_path: Path) -> None:
    folder, digest = audit
    (folder.folder / "report.html").rename(tmp_path / "report.html")
    (folder.folder / "report.html").symlink_to(tmp_path / "report.html")
    (folder.folder / "evil\x1b[2J\n").symlink_to(tmp_path)
    (folder.folder / OBSERVATIONS).unlink()
    os.mkfifo(folder.folder / OBSERVATIONS)

    problems = verify(folder, digest, make_again).problems

    assert len(problems) == 3
    assert all(problem.endswith(" is a link or a device, and no file.") for problem in problems)
    assert all(map(str.isprintable, problems)), "a name cannot write on the terminal"


def test_very_large_files_are_not_read(
    audit: tuple[AuditFolder, str],
) -> None:
    """They have no blocks, so only reading them would take long."""
    folder, digest = audit
    truncate(folder.folder / "extra", 2**40)
    truncate(folder.folder / "report.html", 2**40)

    problems = verify(folder, digest).problems

    assert problems == (
        "The file extra was added: the manifest does not list it.",
        "The file report.html was changed.",
    )


@pytest.mark.parametrize("name", [MANIFEST, f"{MANIFEST}.sig"])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(os.mkfifo, id="a pipe"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), id="a device"),
        pytest.param(lambda path: truncate(path, 5 * 2**30), id="very large"),
    ],
)
def test_a_strange_manifest_or_signature_is_not_read(
    audit: tuple[AuditFolder, str], tmp_path: Path, make: Forge, name: str
) -> None:
    """``ssh-keygen`` would wait for a pipe, and read a device, for ever."""
    folder, digest = audit
    path = folder.folder / name
    path.unlink(missing_ok=True)
    make(path)

    with pytest.raises(InputError, match="is no file, or larger than 64 MB"):
        verify(folder, None, allowed_signers=tmp_path / "signers")
    with pytest.raises(InputError, match="is no file, or larger than 64 MB"):
        verify(folder, digest, allowed_signers=tmp_path / "signers")


TABLE = "ranking_gap,p\n0.1,0\n1234567,yes\n"
PICTURE = '<svg width="3.5pt"><path d="M 0 1"/><text x="1">70%</text></svg>'
PICTURES = "The lines of pictures, which matplotlib 3.9.0 drew."
OLD_MATPLOTLIB = versions() | {"matplotlib": "3.9.0"}


def verify_file(
    folder: AuditFolder, name: str, text: str, remade: str, **versions: str
) -> Verification:
    """Verify an audit with one more file, of which making it again gives another text."""
    (folder.folder / name).write_text(text)
    falsify(
        folder.folder, lambda data: data.update(files=data["files"] | {name: ""}, versions=versions)
    )
    return verify(folder, make_again=lambda _, into: (into / name).write_text(remade))


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    ("name", "remade"),
    [
        ("t.csv", "ranking_gap,p\n0.1000004,1e-17\n1234567,yes\n"),
        ("t.json", "ranking_gap,p\n0.10000000001,0\n1234567,yes\n"),
    ],
    ids=["csv", "json"],
)
def test_rounding_of_another_machine_is_no_tampering(
    audit: tuple[AuditFolder, str], name: str, remade: str
) -> None:
    """`verify` forgives numbers that another machine rounds differently."""
    verification = verify_file(audit[0], name, TABLE, remade, **versions())

    assert not [problem for problem in verification.problems if problem.startswith(name)]
    assert not any(sentence.startswith(PICTURES) for sentence in verification.unchecked)


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    ("name", "remade", "difference"),
    [
        pytest.param(
            "t.json",
            "ranking_gap,p\n0.1000004,0\n1234567,yes\n",
            (2, "0.1", "0.1000004"),
            id="a digit in json",
        ),
        pytest.param(
            "t.md",
            "ranking_gap,p\n0.1000004,0\n1234567,yes\n",
            (2, "0.1", "0.1000004"),
            id="a digit in a text",
        ),
        pytest.param(
            "t.md", "ranking_gap,p\n0.1,0\n1234567,yes", (3, "", ""), id="no end of the line"
        ),
        pytest.param(
            "t.csv",
            "ranking_gap,p\n0.2,0\n1234567,yes\n",
            (2, "0.1", "0.2"),
            id="another number",
        ),
        pytest.param(
            "t.csv",
            "ranking_gap,p\n0.1,0\n1234568,yes\n",
            (3, "1234567", "1234568"),
            id="another count",
        ),
        pytest.param(
            "t.csv", "ranking_gap,p\n0.1,0,2\n1234567,yes\n", (2, "", ","), id="another cell"
        ),
        pytest.param("t.csv", "ranking_gap,p\n0.1,0\n", (3, "1234567", ""), id="a missing line"),
    ],
)
def test_more_than_rounding_is_tampering(
    audit: tuple[AuditFolder, str], name: str, remade: str, difference: tuple[int, str, str]
) -> None:
    """Measured numbers of tables may differ by rounding; ids, counts and texts may not."""
    verification = verify_file(audit[0], name, TABLE, remade, **versions())

    problems = [problem for problem in verification.problems if problem.startswith(name)]
    assert problems == [f"{name}, line %d, says '%s', and raw/ gives '%s'." % difference]
    assert not any(sentence.startswith(PICTURES) for sentence in verification.unchecked)


@pytest.mark.promise("audit")
def test_another_matplotlib_may_draw_other_lines(audit: tuple[AuditFolder, str]) -> None:
    """`verify` forgives and names pictures that another version of matplotlib drew."""
    drawn = PICTURE.replace("0 1", "0 2").replace("3.5", "4")

    verification = verify_file(audit[0], "t.html", drawn, PICTURE, **OLD_MATPLOTLIB)

    assert not [problem for problem in verification.problems if problem.startswith("t.html")]
    assert any(sentence.startswith(PICTURES) for sentence in verification.unchecked)


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            f"<svg><foreignObject><h1>All is well.</h1></foreignObject></svg>{PICTURE}",
            id="a foreign object",
        ),
        pytest.param(f"<svgx><h1>All is well.</h1></svg>{PICTURE}", id="no picture"),
        pytest.param(PICTURE.replace("70%", "10%"), id="another number"),
        pytest.param(
            PICTURE.replace("<path", "<style>h1 {display: none}</style><path"), id="a style"
        ),
        pytest.param(
            PICTURE.replace("<svg ", '<svg style="position: fixed" '), id="a style of the picture"
        ),
    ],
)
def test_another_matplotlib_hides_no_forged_words(
    audit: tuple[AuditFolder, str], page: str
) -> None:
    """Another version of matplotlib hides no forged words."""
    verification = verify_file(audit[0], "t.html", page, PICTURE, **OLD_MATPLOTLIB)

    problems = [problem for problem in verification.problems if problem.startswith("t.html")]
    assert problems[0].startswith("t.html, line ")
    assert any(sentence.startswith(PICTURES) for sentence in verification.unchecked)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(
            {"files": {"../a": "0" * 64}}, "The file ../a is missing.", id="a file outside"
        ),
        pytest.param(
            {"files": {"/etc/passwd": "0" * 64}},
            "The file /etc/passwd is missing.",
            id="an absolute path",
        ),
        pytest.param(
            {"finished": ""}, "The audit is not finished; run it again.", id="not finished"
        ),
        pytest.param({"format": 1}, "another version (at format)", id="another format"),
        pytest.param({"strange": 2}, "another version (at strange)", id="an unknown field"),
    ],
)
def test_a_manifest_by_somebody_else_is_refused(
    audit: tuple[AuditFolder, str], change: dict[str, Any], problem: str
) -> None:
    folder, digest = audit
    path = folder.folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))

    assert verify(folder, digest).problems[0].startswith("The digest of the audit is ")
    try:
        problems = verify(folder, make_again=make_again).problems
    except InputError as error:
        problems = (str(error),)
    assert any(problem in sentence for sentence in problems)


@pytest.mark.promise("audit")
def test_raw_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Only the owner may read `raw/`."""
    folder = AuditFolder(tmp_path / "audit")
    raw = folder.folder / "raw"
    umask = os.umask(0o002)
    try:
        folder.begin(examples.manifest_of(QUERIES, SPEC))
        with folder.observations.writing():
            folder.observations.add(observations_of(QUERIES)[0])
        assert [mode_of(path) for path in (raw, *raw.iterdir())] == [0o700, 0o600]
        sealed(folder.folder, QUERIES, observations_of(QUERIES)[1:], spec=SPEC)
    finally:
        os.umask(umask)

    assert {mode_of(path) for path in raw.iterdir()} == {0o600}
    assert mode_of(folder.folder / "report.html") == 0o664


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_a_whole_audit_is_sealed(tmp_path: Path) -> None:
    folder = AuditFolder(tmp_path / "audit")
    folder.begin(examples.manifest_of(QUERIES, SPEC))
    with folder.observations.writing():
        folder.observations.add(observations_of(QUERIES)[0])

    with pytest.raises(InputError, match="has observed 1 of 12 queries; run it again to go on"):
        folder.settle(QUERIES)


@pytest.mark.promise("audit")
def test_a_redacted_audit_holds_no_query(tmp_path: Path) -> None:
    """A redacted audit holds no query, and cannot be continued.

    It has neither a text, nor an id, nor a hash that somebody who guesses a query could compare;
    all else stays.
    """
    rows = [QueryRow(number, None, text, 1.5 + number) for number, text in enumerate(TEXTS)]
    queries = collect_queries(rows, weighted_by="count")
    folder = AuditFolder(tmp_path / "audit")
    observed = observations_of(queries, failed=(queries.queries[3].id,))
    texts = ", ".join(TEXTS)
    quoting = {"command": (texts,), "inputs": {texts: "0" * 64}, "spec": SPEC}

    audit = sealed(folder.folder, queries, observed, redact=True, **quoting)

    assert verify(folder, audit.digest, make_again).problems == ()
    content = b"\n".join(path.read_bytes() for path in folder.folder.rglob("*") if path.is_file())
    for query in queries.queries:
        assert not [trace for trace in traces_of(query) if trace.encode() in content]
    assert queries.fingerprint.encode() not in content

    pseudonyms = audit.queries.queries
    observations = folder.observations.read()
    assert [query.text for query in pseudonyms] == [f"query {n}" for n in range(1, 5)]
    assert [query.id for query in pseudonyms] == [observation.query for observation in observations]
    messages = [observation.message for observation in observations if observation.message]
    assert messages == ["withheld, as it may quote the query"]
    assert ids_by_weight(pseudonyms, observations) == ids_by_weight(queries.queries, observed)
    with pytest.raises(InputError, match="holds a run with another inputs"):
        folder.begin(examples.manifest_of(queries, **quoting))


def traces_of(query: AuditQuery) -> Iterator[str]:
    """Yield what would tell a query: its text as files write it, its id and hashes of it."""
    yield query.id
    for text in (query.text, json.dumps(query.text)[1:-1], query.text.replace('"', '\\"')):
        yield text
        for function in (hashlib.sha256, hashlib.sha1, hashlib.md5):
            yield function(text.encode()).hexdigest()[:12]


def ids_by_weight(
    queries: Sequence[AuditQuery], observations: Sequence[Observation]
) -> dict[float, Sequence[str]]:
    pairs = zip(queries, observations, strict=True)
    return {query.weight: observation.ids for query, observation in pairs}


def test_pseudonyms_follow_from_nothing() -> None:
    """They are no ids of queries either."""
    queries = Queries(queries_of(50).queries, lines=50, weight=50.0, design="")

    first, ids = pseudonymous(queries)
    _, other_ids = pseudonymous(queries)

    assert ids != other_ids
    assert [query.id for query in first.queries] == [f"qq{n:02}" for n in range(1, 51)]
