"""The reports of all experiments: as they were read once, whole pages, and names are never markup.

A page is read as XML, in which nothing stays open, crosses or stands twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.measuring import SPENT
from fairqr.evaluation.experiments.specification import SearchRecord
from fairqr.evaluation.probes.running import Task, measure
from fairqr.evaluation.rag.measures import KEYS, POLICY, Name
from fairqr.evaluation.rag.report import figures_of
from fairqr.evaluation.rag.store import AnswerRecord
from fairqr.evaluation.rag.summaries import curves_of
from fairqr.evaluation.reports import text, writer
from tests.golden.reports import check_report
from tests.unit.evaluation.experiments import small
from tests.unit.evaluation.probes import made
from tests.unit.evaluation.probes.made import FIRST, PROTECTED, REFUSES, UNPROTECTED, prefers
from tests.unit.evaluation.rag import small_rag

FETCHING = {"script", "link", "img", "iframe", "object", "form"}
MARKUP = {"html_inline", "html_block", "link_open", "code_inline", "fence", "code_block"}
READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
METHOD_PAGE = Path(__file__).parents[4] / "docs" / "explanation" / "method.md"
HOSTILE = (
    '<script>alert(1)</script> <img src="//evil.example/x.png"> | `x` *y* $\\frac{ & &lt; ]]> '
    "[a](http://evil.example)"
)


def some_lists(folder: Path, named: str = "", status: str = "refused") -> Any:
    """A run with two windows, a biased ranker, one that fails, and rankings to be made."""

    def refuses(number: int, task: Task) -> dict[str, Any] | None:
        failures = {status: 2, "timeout": 1}
        refused = made.ranks(range(len(task.items)), failures=failures)
        return refused if task.entrant.window == "20/10" else None

    def repaired(number: int, task: Task) -> dict[str, Any]:
        more = {"repairs": {"missing": 3, status: 1}, "warnings": (f"Cut: {status}.",)}
        return made.noisy(number, task) | more

    says = {"initial": made.nobody, f"openai:{named or 'biased'}": made.by_protection}
    says |= {"monot5": repaired, "openai:refuses": refuses}
    more = {"windows": ["20/10", "10/5"], "size": 24, "about": status, "title": named or "biased"}
    probes = [
        made.collection(queries=12, sizes=(6, 3, 5, 4), **words_of(named)),
        made.collection(queries=4, name="notables, place", words=("far", "near")),
    ]
    made.begin(folder, made.listwise(rankers=[*says], **more), probes, says)
    return measure(folder)


def some_pairs(folder: Path, named: str = "", status: str = "refused") -> Any:
    """A run on models that are biased, do a bit of everything, and fail."""
    mixed = prefers(PROTECTED, UNPROTECTED, FIRST, REFUSES, log_odds=(0.75, 0.25))
    who = named or "biased"
    says = {who: made.biased, "mixed": mixed, "fails": prefers((status, "both"))}
    more = {"size": 36, "relevance_pairs": 4, "about": status, "title": who}
    probe = made.collection(queries=12, sizes=(9, 8, 9, 9), **words_of(named))
    made.begin(folder, made.pairwise(models=[*says], **more), [probe], says)
    return measure(folder)


def a_tuning(folder: Path, named: str = "", status: str = "refused") -> Any:
    """A tuning that reduces a bias, and costs relevance."""
    who = named or "biased"
    more = {"model": f"causal:{who}", "size": 20, "about": status, "title": who}
    after = prefers(UNPROTECTED, PROTECTED, UNPROTECTED, (status, "protected"))
    probe = made.collection(queries=24, **words_of(named))
    made.begin_tuning(folder, probe, made.biased, after, **more)
    return measure(folder)


def words_of(named: str) -> dict[str, Any]:
    """Return how a collection and its groups are called."""
    return {"name": named, "words": (named, f"{named}!")} if named else {}


def some_answers(folder: Path, named: str = "", status: str = "") -> Any:
    """A run of Fair RAG; if it has a name, a policy drew nothing and an answer failed."""
    if not named:
        of = {"note": "A note.", "left_out": {"the profile is empty": 2}}
        return small_rag.made(alphas=[1, 2, 4, 8], of=of).measured()
    run = small_rag.made(of={"title": named}, about=named, retrievers=["bm25"])
    hostile = {"notes": (named,), "attributor": named, "versions": {named: "1"}}
    run.manifest = run.manifest.model_copy(update=hostile | {"prompts": {named: named}})
    undrawn = {"samples": (), "answers": (), "failure": named}
    failed = {"answers": (AnswerRecord(ranking=(0, 1), status=status),)}
    for place, changes in ((1, undrawn), (2, failed)):
        run.records[place] = run.records[place].model_copy(update=changes)
    return run.measured()


def some_searches(folder: Path, named: str = "", status: str = "") -> Any:
    return small.measured(
        folder, **dict.fromkeys(("named", "title", "about"), named) if named else {}
    )


RUNS: dict[str, Callable[..., Any]] = {
    "listwise": some_lists,
    "pairwise": some_pairs,
    "tuning": a_tuning,
    "fair_rag": some_answers,
    "search": some_searches,
}


def read_page(folder: Path) -> Element:
    """Read the page of a report, which fetches nothing, and where no text became markup.

    All can read it: parts, tables and pictures have names, and what scrolls can be reached.
    """
    html = (folder / "report.html").read_text()
    plain = re.sub(r"<!doctype html>|<style.*?</style>", "", html, flags=re.DOTALL)
    root = fromstring(re.sub(r"<((?:meta|br|hr|img)\b[^>]*?)/?>", r"<\1/>", plain))
    ids = [it.attrib["id"] for it in root.iter() if "id" in it.attrib]
    assert len(set(ids)) == len(ids)
    assert not {it.tag for it in root.iter()} & FETCHING
    for it in root.iter():
        for name, value in it.attrib.items():
            assert not name.startswith("on"), it.tag
            assert value.startswith("#") or not name.endswith(("href", "src")), (it.tag, value)
        assert not re.search(r"url\((?!#)", it.get("style", ""))
    assert "@import" not in html
    policy = [it.get("content") for it in root.iter("meta") if "http-equiv" in it.attrib]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert "nan" not in re.findall(r"\w+", "".join(root.itertext()).lower())
    assert root.get("lang") == "en"
    parts = [it.attrib["href"] for it in root.iter("a")]
    assert parts == [f"#s{number}" for number, _ in enumerate(parts, start=1)]
    assert {it[1:] for it in parts} <= {*ids}
    levels = [int(it.tag[1]) for it in root.iter() if re.fullmatch("h[1-6]", it.tag)]
    assert (levels[0], levels.count(1), levels.count(2)) == (1, 1, len(parts))
    assert len([*root.iter("caption")]) == len([*root.iter("table")]) > 0
    assert all(it.get("scope") in ("row", "col") for it in root.iter("th"))
    for table in root.iter("table"):
        assert len({len(row) for row in table.iter("tr")}) == 1
    for region in (it for it in root.iter("div") if it.get("role") == "region"):
        assert region.get("tabindex") == "0"
        assert "aria-label" in region.attrib or region.get("aria-labelledby") in ids
    pictures = [it for it in root.iter("svg") if it.get("role") == "img" and it.get("aria-label")]
    tokens = READER.parse((folder / "report.md").read_text())
    kinds = Counter(it.type for token in tokens for it in (token, *(token.children or [])))
    assert not kinds.keys() & MARKUP
    drawn = [*(folder / "figures").iterdir()]
    assert kinds["image"] == len(pictures) == len(drawn) > 0
    assert not any("<!DOCTYPE" in it.read_text() for it in drawn)
    return root


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize("kind", RUNS)
def test_the_same_results_give_the_same_files(kind: str, tmp_path: Path) -> None:
    """The same results give the same report, byte for byte.

    They are as they were read once; the page is whole and fetches nothing.
    """
    written = []
    for name in ("one", "other"):
        paths = RUNS[kind](tmp_path / f"run {name}").write_report(tmp_path / name)
        written.append({path.name: path.read_bytes() for path in paths})
    files, other = written
    assert files == other
    assert "measures.csv" in files
    check_report(kind, files["report.md"].decode())
    read_page(tmp_path / "one")


@pytest.mark.parametrize("kind", RUNS)
def test_hostile_names_never_become_markup(kind: str, tmp_path: Path) -> None:
    RUNS[kind](tmp_path / "run", HOSTILE, HOSTILE).write_report(tmp_path / "report")
    assert text.plain(HOSTILE) in "".join(read_page(tmp_path / "report").itertext())


def test_a_run_that_has_barely_begun_says_so(tmp_path: Path) -> None:
    """And claims nothing about what it does not ask."""
    probe = made.collection()
    lists = made.listwise(rankers=["model"], personas=["neutral"], windows=["20/10"])
    made.begin(tmp_path / "lists", lists, [probe], {"model": made.nobody})
    pairs = made.pairwise(models=["model"])
    made.begin(tmp_path / "pairs", pairs, [probe], {"model": made.nobody})
    both = (made.even, made.nobody)
    made.begin_tuning(tmp_path / "tuning", probe, *both, relevance_pairs=0)
    for name, left, said in (
        ("lists", "8 rankings", "nothing is said of fairness toward those who ask"),
        ("pairs", "64 pairs", "it is not known how well the models judge relevance"),
        ("tuning", "32 held-out pairs", "not known whether fairness cost relevance"),
    ):
        measure(tmp_path / name).write_report(tmp_path / name)
        told = "".join(read_page(tmp_path / name).itertext())
        assert f"{left} still to be done" in told
        assert said in told


def test_a_value_that_a_template_lacks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="is undefined"):
        writer.render("search", {"title": "A title"})


# --- searches ---

MEASURES = ["nDCG@5", "AWRF@5(unit=bits)", "nDCG@5×AWRF@5(unit=bits)"]


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The small experiment as it is."""
    folder = tmp_path_factory.mktemp("whole")
    return small.measured(folder)


def report_of(found: Any, folder: Path) -> str:
    found.write_report(folder)
    return (folder / "report.md").read_text()


def test_figures_of_searches_are_those_of_the_written_values(searches: Any, tmp_path: Path) -> None:
    """Recomputed from measures.csv, which another reader would use."""
    searches.write_report(tmp_path)
    assert len(searches.frames["searches"]) == 4 * 4
    rows = pd.read_csv(tmp_path / "measures.csv", float_precision="round_trip")
    for (_, _, system), evaluation in searches.evaluations.items():
        own = rows[rows.system == system].set_index(["measure", "topic"]).value
        for name, result in evaluation.results.items():
            assert own[name].to_dict() == result.values
    rows = rows[~rows.measure.isin(SPENT)]
    rows["measure"] = rows.measure.replace(dict(zip(rows.measure.unique(), MEASURES, strict=True)))
    expected = rows.groupby(["system", "measure"]).value.mean()
    means = searches.frames["means"].set_index(["system", "measure"])
    assert means["mean"].to_dict() == pytest.approx(expected.to_dict())
    assert set(means.topics) == {4}
    highest = means.groupby("measure")["mean"].transform("max")
    assert list(means.best) == list(means["mean"] == highest)
    differences = searches.frames["differences"].set_index(["system", "measure"])
    wanted = expected.sub(expected["BM25"], level="measure").drop("BM25")
    assert differences.difference.to_dict() == pytest.approx(wanted.to_dict())
    counted = differences[["baseline", "count", "tests"]].drop_duplicates().values.tolist()
    assert counted == [["BM25", 4, 9]]
    assert (differences.holds == (differences.randomisation_corrected <= 0.05)).all()
    assert differences.too_few.all(), "four topics can show nothing"
    assert differences.low.isna().all(), "four topics are too few for an interval"


def test_no_mean_over_other_topics_is_the_best(tmp_path: Path) -> None:
    """One system finds nothing for a topic: relevance counts it as 0, fairness has no value.

    Two of four occupations have a place, so half of the documents that are ranked. A measure that
    is written in two ways is one.
    """

    def without(record: SearchRecord) -> SearchRecord:
        empty = {"ids": [], "rounds": [], "error": "Nothing found."}
        return record.model_copy(update=empty if record.key[2:] == ("ours", 0, "t0") else {})

    none = "EE-L@5(estimator=unbiased)"  # no system has a value of several rankings
    twice = [none, *MEASURES[:2], "AWRF@5(attribute=place,unit=bits)", MEASURES[2]]
    found = small.measured(tmp_path, without, measures=twice, attributes=["place"])
    means = found.frames["means"]
    assert [*means.measure.unique()] == [none, *MEASURES]
    topics = means.set_index(["system", "measure"]).topics
    assert [topics["ours", name] for name in MEASURES] == [4, 1, 2]
    marked = means.groupby("measure").best.any()
    assert marked[[none, *MEASURES]].tolist() == [False, True, False, True]
    told = report_of(found, tmp_path)
    assert "\n| ours | place | title | 0 | 3 | 1 |" in told
    assert "- 1 of 4 queries missing from ours: " in told
    assert "\n- 10 of 20 documents ranked by BM25 have no known place.\n" in told


def test_several_seeds_of_a_topic_are_one_value(tmp_path: Path) -> None:
    """Their mean is taken first, by round too."""

    def further(record: SearchRecord) -> SearchRecord:
        target = {"female": 0.1 + 0.2 * record.seed}
        return record.model_copy(update={"target": target})

    rounds = small.measured(tmp_path, further, seeds=[0, 1]).frames["rounds"]
    assert rounds["target of female"].tolist() == pytest.approx([0.2] * len(rounds))


@pytest.mark.filterwarnings("error::FutureWarning")
def test_unfinished_systems_are_named_and_left_out(tmp_path: Path) -> None:
    """Also where only the baseline is finished, and where nothing is."""

    def first(record: SearchRecord) -> SearchRecord | None:
        is_left = record.topic == "t2" and record.system.startswith("ours")
        return None if is_left and record.attribute == "place" else record

    found = small.measured(tmp_path, first, attributes=["gender", "place"])
    assert [*found.unfinished.values()] == [1, 1, 1]
    means = found.frames["means"].groupby("attribute").system.unique()
    assert (len(means["gender"]), [*means["place"]]) == (4, ["BM25"])
    assert {*found.frames["drift"].attribute} == {"gender"}
    told = report_of(found, tmp_path)
    assert "'ours' is left out of all tables and means: 1 search still to be done" in told
    assert "Nothing is compared with the baseline 'BM25'" in told
    with pytest.raises(InputError, match=r"No system in .* has searched for all topics yet"):
        small.measured(tmp_path / "other", lambda it: None if it.topic == "t2" else it)


@pytest.mark.promise("graph")
def test_reports_say_how_our_reading_of_fair_qr_differs(
    tmp_path: Path,
) -> None:
    """How our reading of FAIR-QR differs from the paper's stands in the docs and in each report
    with such a row, from one source.

    From one source.
    """
    differences = (writer.TEMPLATES / "fair_qr.md.j2").read_text(encoding="utf-8")
    assert f"\n\n{differences}\n" in METHOD_PAGE.read_text(encoding="utf-8")
    row = {"name": "Our reading of FAIR-QR", "method": "fair-qr", "model": "feedback"}
    systems = [small.SYSTEMS[0], row]
    report = report_of(small.measured(tmp_path / "with", systems=systems), tmp_path)
    assert report.count(f"\n\n{differences}") == 1
    assert differences not in report_of(small.measured(tmp_path / "without"), tmp_path)


def test_an_experiment_without_relevance_still_has_a_report(tmp_path: Path) -> None:
    found = small.measured(tmp_path, systems=small.SYSTEMS[:1], measures=["NDKL@5", "KL@5"])
    assert "There is no plot of relevance against fairness" in report_of(found, tmp_path)
    assert found.frames["means"].best.all(), "the lower the better, and the only one"


# --- answers ---


def answers_of(run: small_rag.Made) -> str:
    """The report without its figures, which take long to draw."""
    return writer.render("fair_rag", run.measured().shown, [])


def test_figures_of_answers_are_those_of_the_written_values(tmp_path: Path) -> None:
    """Recomputed from measures.csv, which another reader would use; all measures are explained."""
    measured = small_rag.made(alphas=[1, 2, 4, 8]).measured()
    measured.write_report(tmp_path)
    told = (tmp_path / "report.md").read_text(encoding="utf-8")
    explained = told.split("| measure | what it is |")[1].replace("\\", "")
    assert [line.split("|")[1].strip() for line in explained.splitlines()[2:]] == list(Name)
    table = pd.read_csv(tmp_path / "measures.csv", keep_default_na=False, na_values={"value": ""})
    is_of_groups = table.measure.str.contains(",.*: ")
    by_group = table[is_of_groups & table.measure.str.startswith("exposure")]
    assert by_group.groupby(KEYS).value.sum().to_numpy() == pytest.approx(1)
    is_of_all = table["query"] == ""
    curves = table[is_of_all & (table.measure == "area")].set_index(["retriever", "policy"]).value
    wanted = curves_of(measured.values).set_index(["retriever", "normalisation"]).area
    assert curves.to_dict() == pytest.approx(wanted.to_dict())
    assert len(table[is_of_all & table.measure.str.startswith("EU/u_max")]) > 0
    table = table[~is_of_groups & ~is_of_all]
    assert len(table) == len(measured.values) * len(Name)
    by_query = table.groupby([*POLICY, "measure", "query"]).value.mean()
    by_policy = by_query.groupby([*POLICY, "measure"]).agg(["mean", "count"])
    means = measured.means.set_index([*POLICY, "measure"])[["mean", "queries"]]
    assert len(means) == 2 * (2 * 5 + 1) * len(Name)
    for key, own in means.iterrows():
        assert [*by_policy.loc[key]] == pytest.approx([*own], nan_ok=True)


def test_what_a_run_lacks_is_said() -> None:
    """Why nothing was drawn, and what is still to do."""
    run = small_rag.made(generators=["small"], retrievers=["bm25"], of={"schema": None}, judge="")
    assert "not finished" not in answers_of(run)
    label, first, *others = run.records
    failure = {"samples": (), "answers": (), "failure": "The scores are no numbers."}
    kept = [it for it in others if it.policy == "labels" or it.query == "q1"]
    run.records = [label, first.model_copy(update=failure), *kept]
    told = answers_of(run)
    for said in (
        "- 1 × The scores are no numbers.",
        "not finished: 0 queries without labels, and 19 policies on queries still",
        "No answer has a verdict on the documents that it used",
    ):
        assert said in told
    assert "## Groups" not in told


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", ["deterministic", "plackett-luce", "oracle", "undrawn"])
def test_any_part_of_a_run_can_be_reported(part: str) -> None:
    run = small_rag.made(alphas=[0, 8], generators=["small"], retrievers=["bm25"])
    drawn = [it for it in run.records if it.policy != "labels"]
    run.records = [it for it in drawn if it.policy == part] or drawn[:1]
    if part == "undrawn":
        empty = {"samples": (), "answers": (), "failure": "no scores"}
        run.records += [it.model_copy(update=empty) for it in drawn[1:]]
    assert "## Cost" in answers_of(run)
    assert len(figures_of(run.measured())) <= 18


@pytest.mark.promise("evaluation")
def test_the_same_results_in_another_order_give_the_same_files(tmp_path: Path) -> None:
    """The order in which results were written changes no byte of the report."""
    run = small_rag.made(queries=5, generators=["small"], retrievers=["bm25"])
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        run.measured().write_report(folder)
        run.records.reverse()
    files = sorted(path for path in one.rglob("*") if path.is_file())
    assert len(files) == 21
    for path in files:
        assert path.read_bytes() == (other / path.relative_to(one)).read_bytes()


# --- text ---

SIGNS = st.sampled_from([*"\\`*_[]()<>|~$#!&;:/.+-=1a \t\n\"'{}\u202e\x00", "www.", "://"])


@given(st.lists(SIGNS, min_size=1, max_size=30).map("".join))
@example("1.")
def test_markdown_shows_any_text_as_it_stands(given_text: str) -> None:
    """As a heading, a paragraph, an item of a list, and a cell."""
    if not text.plain(given_text).strip():
        return
    one = text.escaped(given_text)
    page = f"# {one}\n\n{one}\n\n- {one}\n\nc\n\n| h |\n| --- |\n| {one} |"
    inline = [token for token in READER.parse(page) if token.type == "inline"]
    said = ["".join(child.content for child in token.children or ()) for token in inline]
    assert [said[0], said[1], said[2], said[5]] == [text.plain(given_text).strip()] * 4
    kinds = {child.type for token in inline for child in token.children or ()}
    assert kinds <= {"text", "text_special"}


def test_odd_runs_have_reports() -> None:
    """A rounded zero has no sign, and thousands are set apart."""
    assert [text.difference(it) for it in (0.0, -0.00001)] == ["0.0000"] * 2
    assert text.amounts([1250.0, 2.0]) == "1,250 / 2"
    assert text.counted(1200, "search", "searches") == "1,200 searches"
