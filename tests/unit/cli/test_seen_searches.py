"""What a proxy records of searches, and how an audit reads that."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from filelock import FileLock
from prometheus_client import generate_latest

from fairqr.base.errors import ConfigError
from fairqr.graph.service.proxy.log import as_run, write_searches
from fairqr.graph.service.proxy.requests import ProxiedSearch, planned
from fairqr.graph.service.proxy.seen import LOG, OLDER, Seen
from fairqr.graph.service.proxy.settings import ProxiedIndex, ProxySettings
from tests.patience import until

DOCS = Path(__file__).parents[3] / "docs"
SHOWN: dict[str, Any] = {
    "k": 2,
    "discount": "log2",
    "page": 2,
    "ids": ["a man", "b", "c"],
    "groups": {"gender": ["male", "male", {"female": 0.5, "male": 0.5}]},
    "order": [0, 2, 1],
    "exposure": {
        "engine": {"gender": {"female": 0.0, "male": 1.0}},
        "fair": {"gender": {"female": 0.4, "male": 0.6}},
        "target": {"gender": {"female": 0.5, "male": 0.5, "other": 0.0}},
        "shown": {"gender": {"female": 0.1, "male": 0.9}},
    },
    "by": "vectors",
    "quality": {"engine": [1.0, 0.5], "fair": [0.9, 0.9]},
}
HALVES = {"gender": {"female": 0.5, "male": 0.5}}
WOMEN = {**SHOWN, "ids": ["x", "y", "z"], "groups": {"gender": ["female"] * 3}}


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Seen]:
    """Opens what a proxy has seen, with a log in the test's folder."""
    indexes = {"it": {"source": "it.yaml"}}
    fields = {"cluster": "http://127.0.0.1:9", "indexes": indexes, "folder": tmp_path, "log": "log"}
    settings = ProxySettings.model_validate(fields)

    def make(**changes: Any) -> Seen:
        return Seen(settings.model_copy(update=changes))  # a log that is smaller than allowed, too

    return make


def search(words: str, start: int = 0, share: float = 0.0, index: str = "it") -> ProxiedSearch:
    body = {"query": {"match": {"bio": words}}, "from": start, "size": 2}
    settings = ProxiedIndex(source=Path("it.yaml"), mode="fair", share=share)
    plan = planned(body, {}, settings, index)
    assert isinstance(plan, ProxiedSearch)
    return plan


def show(seen: Seen, *queries: str, shown: dict[str, Any] = SHOWN, share: float = 0.0) -> None:
    """Show a list for each query: a fair one if there is a share, else the engine's own."""
    outcome = "re-ranked" if share else "shadow"
    for query in queries:
        seen.add_shown(search(query, share=share), outcome, shown)


def read_log(folder: Path) -> list[dict[str, Any]]:
    lines: list[bytes] = []
    for name in (OLDER, LOG):
        with suppress(FileNotFoundError):  # or it is about to become the older one
            lines += (folder / name).read_bytes().split(b"\n")
    records = []
    for line in filter(None, lines):
        with suppress(json.JSONDecodeError):  # the newest may be half written
            records.append(json.loads(line))
    return records


def wait_for_records(folder: Path, number: int) -> None:
    """Wait until a log has so many records, which are written behind the proxy's back."""
    until(lambda: len(read_log(folder)) == number)


def figures(seen: Seen) -> dict[str, float]:
    """Return what Prometheus reads."""
    text = generate_latest(seen.registry).decode()
    samples = re.findall(r"^([^# ].*) (\S+)$", text, re.MULTILINE)
    return {name: float(number) for name, number in samples}


@pytest.fixture
def full_log(opened: Callable[..., Seen], tmp_path: Path) -> Path:
    """The folder of a log of 20,000 bytes, after 200 searches, which were more."""
    seen = opened(log_bytes=20_000)
    for number in range(200):
        show(seen, f"secret {number}")
    newest = search("secret 199").key
    folder = tmp_path / "log"
    until(lambda: newest in {record["query"] for record in read_log(folder)})
    return folder


@pytest.mark.promise("service")
def test_a_log_is_private(full_log: Path) -> None:
    """Only its owner can read the log of a proxy, and by default it holds no words of queries."""
    files = [*full_log.iterdir()]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(full_log.stat().st_mode) == 0o700
    assert not any(b"secret" in file.read_bytes() for file in files)


@pytest.mark.promise("service")
def test_a_log_is_bounded_and_keeps_the_newest(full_log: Path) -> None:
    """The log of a proxy keeps to its size, and keeps the newest records."""
    sizes = [file.stat().st_size for file in full_log.iterdir()]
    assert 10_000 < sum(sizes) <= 20_000

    queries = [record["query"] for record in read_log(full_log)]
    first = 200 - len(queries)
    assert queries == [search(f"secret {number}").key for number in range(first, 200)]


def test_a_log_that_is_continued_begins_with_a_whole_line(full_log: Path) -> None:
    content = (full_log / LOG).read_bytes()
    assert (full_log / OLDER).exists()
    assert content[:1] == b"{"
    assert b"\n\n" not in content


LOST = 'fairqr_proxy_log_lost_total{{reason="{}"}}'


@pytest.mark.promise("service")
def test_a_disk_without_room_costs_records_and_nothing_else(
    opened: Callable[..., Seen], tmp_path: Path
) -> None:
    """A full disk costs the proxy records of its log, which are counted, and nothing else, and the
    log goes on after a damaged line.
    """
    file = tmp_path / "log" / LOG
    file.parent.mkdir()
    file.symlink_to("/dev/full")
    seen = opened(log_words=True)
    lost = LOST.format("ENOSPC")
    show(seen, "one", "two")
    until(lambda: figures(seen).get(lost) == 2)

    file.unlink()
    file.write_text('{"half')  # of a record, as a full disk leaves it
    show(seen, "three")
    until(lambda: b"three" in file.read_bytes())

    assert file.read_text().split()[0] == '{"half'
    assert figures(seen)[lost] == 2


def test_a_record_larger_than_the_log_is_lost(opened: Callable[..., Seen], tmp_path: Path) -> None:
    seen = opened(log_words=True, log_bytes=20_000)
    too_large = {**SHOWN, "ids": ["y" * 100_000]}
    show(seen, *["x" * 100] * 3, shown=too_large)
    until(lambda: figures(seen).get(LOST.format("EFBIG")) == 3)
    show(seen, "small")
    wait_for_records(tmp_path / "log", 1)

    assert len((tmp_path / "log" / LOG).read_bytes()) < 1_000_000


def test_the_log_of_a_proxy_that_is_ending_is_waited_for(
    opened: Callable[..., Seen], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log").mkdir()
    lock = FileLock(tmp_path / "log" / ".lock", thread_local=False)
    lock.acquire()
    ending = threading.Timer(0.1, lock.release)
    ending.start()
    opened()
    ending.join()

    assert "is in use; waiting 30 s" in caplog.text


@pytest.mark.promise("service")
def test_a_log_has_one_proxy(opened: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch) -> None:
    """No two proxies share a log; the second one is refused."""
    monkeypatch.setattr("fairqr.graph.service.proxy.seen.ENDING", 0.1)
    first = opened()
    with pytest.raises(ConfigError, match="another proxy uses it"):
        opened()

    del first


def test_a_log_that_is_no_folder_is_refused(opened: Callable[..., Seen], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used: Not a directory"):
        opened(log=Path("file/log"))


@pytest.fixture
def counted(opened: Callable[..., Seen]) -> dict[str, float]:
    """The figures of shown and unseen lists of all kinds; a client names hundreds of fields."""
    seen = opened(log=None)
    show(seen, "a", "b", "c")
    show(seen, "d", share=1.0)
    seen.add_unseen(search("d", 2, 1.0), "re-ranked", "further page")  # of the same list
    for number in range(200):
        seen.add_unseen(search("e"), f"field of a client {number}", "empty")
    seen.add_shown(search("f"), "sort", {"exposure": {"target": HALVES, "shown": HALVES}})
    seen.add_unseen(search("a", share=1.0), "slow", "busy")
    return figures(seen)


@pytest.mark.promise("service")
def test_figures_count_what_was_shown(counted: dict[str, float]) -> None:
    """Prometheus reads from a proxy which exposure each group had in the lists that were shown, in
    those of the engine, in fair ones and by the target.
    """
    name = 'fairqr_proxy_exposure_{}{{attribute="gender",group="female",index="it",list="{}"}}'
    lists = ("shown", "engine", "fair", "target")
    sums = {list_: counted[name.format("sum", list_)] for list_ in lists}

    assert sums == pytest.approx({"shown": 0.9, "engine": 0.0, "fair": 1.6, "target": 2.5})
    assert counted[name.format("count", "shown")] == 5


@pytest.mark.promise("service")
def test_clients_cannot_fill_the_memory_of_figures(counted: dict[str, float]) -> None:
    """Whatever clients ask for, the number of figures stays bounded, so that nobody can fill the
    memory of a proxy or of Prometheus.
    """
    searches = counts_by_label(counted, "searches")
    assert searches == {"shadow": 3, "re-ranked": 2, "other": 200, "sort": 1, "slow": 1}

    unseen = counts_by_label(counted, "unseen")
    assert unseen == {"further page": 1, "empty": 200, "busy": 1}


def counts_by_label(samples: dict[str, float], name: str) -> dict[str, float]:
    """Return the samples of a counter by their last label."""
    pattern = re.compile(rf'fairqr_proxy_{name}_total{{index="it",\w+="(.*)"}}')
    counts = {}
    for sample, number in samples.items():
        if match := pattern.fullmatch(sample):
            counts[match[1]] = number
    return counts


def test_thousands_of_groups_are_in_the_log_and_are_no_series(
    opened: Callable[..., Seen], tmp_path: Path
) -> None:
    seen = opened()
    sellers = {"seller": {"one": 0.5, "all others": 0.5}}
    shares = {"exposure": {"target": sellers, "shown": sellers}, "ids": [], "groups": {}}
    seen.add_shown(search("a"), "sort", shares)
    wait_for_records(tmp_path / "log", 1)

    assert read_log(tmp_path / "log")[0]["exposure"]["shown"] == sellers
    assert not any("exposure" in name for name in figures(seen))


def figures_of_documentation() -> set[str]:
    """Return the figures that the dashboard and the alerts of the documentation name."""
    board = json.loads((DOCS / "proxy-dashboard.json").read_text())
    rules = yaml.safe_load((DOCS / "proxy-alerts.yaml").read_text())
    expressions = []
    for panel in board["panels"]:
        expressions += [target["expr"] for target in panel["targets"]]
    for group in rules["groups"]:
        expressions += [rule["expr"] for rule in group["rules"]]
    assert len(expressions) > 6
    return {*re.findall(r"fairqr_proxy_\w+", " ".join(expressions))}


@pytest.fixture
def names_of_figures(opened: Callable[..., Seen]) -> set[str]:
    """The names of all figures that a proxy has."""
    seen = opened()
    show(seen, "a")
    show(seen, "b", shown={**SHOWN, "seconds": 0.1}, share=1.0)
    seen.add_unseen(search("c"), "slow", "busy")
    seen._lost.labels("slow")
    return {name.split("{")[0] for name in figures(seen)}


@pytest.mark.promise("service")
def test_the_dashboard_and_the_alerts_name_figures_there_are(names_of_figures: set[str]) -> None:
    """The dashboard and the alerts of the documentation name only figures that there are."""
    assert figures_of_documentation() <= names_of_figures


def test_the_dashboard_and_the_alerts_show_nearly_all_figures(names_of_figures: set[str]) -> None:
    figures_without_created = {name for name in names_of_figures if not name.endswith("_created")}
    assert figures_without_created - figures_of_documentation() <= {
        "fairqr_proxy_added_seconds_count",
        "fairqr_proxy_added_seconds_sum",
    }


def audit_log(
    fairqr: Callable[..., Any], *options: str, log: str = "log", out: str = "out"
) -> dict[str, Any]:
    """Audit a log; return the report, with what was warned of."""
    ended = fairqr(
        "audit", "--from-log", log, "-o", out, "--attribute", "gender", "--json", *options
    )
    assert ended.code == 0, ended
    report: dict[str, Any] = json.loads(ended.stdout)
    return report | {"warned": ended.stderr}


@pytest.mark.promise("service")
def test_an_audit_of_a_log_says_who_was_seen_by_whom_asked(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    """The log of a proxy is audited with the weights of its queries, so that a query counts as
    often as it was asked and nothing that was shown is hidden; damaged lines are counted and left
    out.

    All the exposure of women is where nobody looks: by lists they have half, by people 1 %.
    """
    seen = opened(log_words=True)
    show(seen, *[f"asked {number % 9}" for number in range(9 * 99)])
    show(seen, *[f"never asked {number}" for number in range(9)], shown=WOMEN)
    wait_for_records(tmp_path / "log", 9 * 100)
    with (tmp_path / "log" / LOG).open("a") as log:
        log.write('\n{"index": "it", "que')

    report = audit_log(fairqr)
    shares = {group["group"]: group["exposure"]["value"] for group in report["groups"]}
    assert shares == {"female": pytest.approx(0.01), "male": pytest.approx(0.99), "other": 0}
    assert (report["queries"]["asked"], report["queries"]["weight"]) == (18, 900)
    assert report["spec"]["k"] == 2  # as many as searches asked for
    assert report["spec"]["target"] == "uniform:1 gender=female:0.5,male:0.5,other:0"
    assert "damaged, and left out: 1." in report["warned"]
    assert report["lists"]["arms"] == []

    text = Path("out/report.md").read_text()
    assert re.search(r"\| relevance \| 100.0% .*\| 90.0% .*\| −10.0%", text)
    assert "It reads 18 queries of a log" in text
    assert "by ranks alone" not in text

    assert fairqr("audit", "verify", "out").code == 0

    again = audit_log(fairqr)  # as it was made
    assert {**again, "warned": ""} == {**report, "warned": ""}

    lists = Path("out/raw/seen.json")
    lists.write_text(lists.read_text().replace("0.9", "0.8"))
    assert "raw/seen.json was changed" in fairqr("audit", "verify", "out").stderr


def test_a_report_says_how_many_lists_were_made_without_texts(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    seen = opened()
    show(seen, *[f"asked {number}" for number in range(6)])
    show(seen, *[f"not encoded {number}" for number in range(3)], shown={**SHOWN, "by": "ranks"})
    wait_for_records(tmp_path / "log", 9)
    audit_log(fairqr)
    text = Path("out/report.md").read_text()

    assert "by texts in 6 of 9 queries, by ranks alone in the others" in text


@pytest.mark.promise("service")
def test_two_arms_stand_beside_each_other(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    """A report on the log of a proxy compares what the engine's lists and the fair lists showed,
    query by query.

    A query that was shown both lists counts in both; whatever its words are, it is audited.
    """
    seen = opened(log_words=True)
    for number in range(30):
        fair = {"gender": {"female": 0.3 + 0.01 * number, "male": 0.0}}
        shown = {**SHOWN, "exposure": {**SHOWN["exposure"], "fair": fair}}
        show(seen, f"asked {number} \ud800", shown=shown)
        show(seen, f"asked {number} \ud800", shown=shown, share=1.0)
    wait_for_records(tmp_path / "log", 60)

    arms = audit_log(fairqr)["lists"]["arms"]
    (women,) = [arm for arm in arms if arm["name"] == "gender: female"]
    assert women["engine"]["queries"] == 30
    assert women["fair"]["queries"] == 30
    assert women["change"]["value"] == pytest.approx(0.445)

    low, high = women["change"]["interval"]
    assert 0.2 < low < 0.445 < high < 0.7


PASSED = {
    **{name: SHOWN[name] for name in ("k", "discount", "page", "ids", "groups")},
    "exposure": {name: SHOWN["exposure"][name] for name in ("engine", "target", "shown")},
}
"""What is known of a page that passed."""


def share_of_women(report: dict[str, Any]) -> float:
    (women,) = [group for group in report["groups"] if group["group"] == "female"]
    return float(women["exposure"]["value"])


def test_each_list_of_a_query_counts_as_often_as_it_was_shown(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    """Whatever made it another one: the index, its labels, the size of the page, or the arm."""
    relabelled = {**SHOWN, "groups": {"gender": ["female", "male", "male"]}}
    shares: list[float] = []  # of women, in each list that was shown
    seen = opened(log_words=True)

    def add(times: int, women: float, shown: dict[str, Any], outcome: str, share: float) -> None:
        for _ in range(times):
            shares.append(women)
            seen.add_shown(search("a", share=share), outcome, shown)

    second = 1 / math.log2(3)
    add(9, 0.0, SHOWN, "shadow", 0.0)
    add(1, 1.0, WOMEN, "shadow", 0.0)
    add(2, 1 / (1 + second), relabelled, "shadow", 0.0)
    add(3, 1.0, {**relabelled, "page": 1}, "shadow", 0.0)
    add(4, 0.0, PASSED, "name", 1.0)
    add(5, 0.0, SHOWN, "slow", 1.0)
    add(6, second / 2 / (1 + second), SHOWN, "re-ranked", 1.0)
    add(2, 1.0, {**WOMEN, "quality": {}}, "shadow", 0.0)  # with pinned documents
    for number in range(8):  # so that there are intervals
        shares.append(0.0)
        seen.add_shown(search(f"other {number}"), "shadow", SHOWN)
    wait_for_records(tmp_path / "log", len(shares))

    report = audit_log(fairqr)
    assert share_of_women(report) == pytest.approx(fmean(shares))
    assert report["queries"]["asked"] == 8 + 8
    assert report["queries"]["weight"] == len(shares)

    queries = json.loads(Path("out/raw/queries.json").read_text())["queries"]
    assert len({query["id"] for query in queries if query["text"] == "a"}) == 8
    assert fairqr("audit", "verify", "out").code == 0


def test_a_page_of_documents_of_the_same_id_is_as_long_as_it_was(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    """An alias of several indexes finds such."""
    twice = {"ids": ["a", "a", "a#2"], "groups": {"gender": ["male", "male", "female"]}}
    shown = {**SHOWN, **twice, "k": 3, "page": 3}
    show(opened(), *[f"asked {number}" for number in range(9)], shown=shown)
    wait_for_records(tmp_path / "log", 9)
    women = share_of_women(audit_log(fairqr))

    assert women == pytest.approx(0.5 / (1 + 1 / math.log2(3) + 0.5))


def test_ranks_count_in_an_audit_as_the_proxy_counts_them(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    shown = {**SHOWN, "groups": {"gender": ["male", "female", "male"]}, "discount": "rbp(0.5)"}
    show(opened(), *[f"asked {number}" for number in range(9)], shown=shown)
    wait_for_records(tmp_path / "log", 9)
    two_ranks = audit_log(fairqr)
    three_ranks = audit_log(fairqr, "-k", "3", out="more")  # nobody was shown a third

    assert share_of_women(two_ranks) == pytest.approx(1 / 3)
    assert share_of_women(three_ranks) == pytest.approx(1 / 3)


def write_long_log(folder: Path, records: int) -> Path:
    """Write a log whose records have long lists."""
    ids = [f"a document of a long id {number}".rjust(200, "-") for number in range(200)]
    lists = {**SHOWN, "ids": ids, "groups": {"gender": ["male", "female"] * 100}, "order": []}
    search_of = {"index": "it", "arm": "engine", "outcome": "shadow"}
    with (folder / LOG).open("a") as log:
        for number in range(records):
            shown = {"gender": {"male": number / records}}
            exposure = {**SHOWN["exposure"], "shown": shown}
            record = {**lists, **search_of, "exposure": exposure, "query": f"{number % 50}"}
            log.write(json.dumps(record) + "\n")
    return folder / LOG


def test_the_memory_of_an_audit_does_not_grow_with_its_log(tmp_path: Path) -> None:
    file = write_long_log(tmp_path, 150)
    tracemalloc.start()
    logged = as_run([tmp_path], tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(logged.seen["lists"]) == 150
    assert peak < file.stat().st_size / 4


def write_log(folder: Path, records: list[dict[str, Any]]) -> None:
    """Write a log whose last line is damaged."""
    folder.mkdir()
    lines = [json.dumps(record) for record in records]
    (folder / LOG).write_text("\n".join([*lines, '{"half']))


def test_searches_of_several_logs_are_in_the_order_of_time(tmp_path: Path) -> None:
    """Clicks name their ids; what a list without hits or a later page has is not of them."""
    query = {"index": "it", "query": "k", "share": 0.5}
    usual = {**SHOWN, **query, "arm": "fair"}
    fair = {**usual, "outcome": "re-ranked", "page": 3}
    swap = {"rank": 3, "is_swapped": True}
    write_log(
        tmp_path / "one",
        [{**fair, "time": 1, "search": "a"}, {**fair, "time": 4, "search": "b", "swap": swap}],
    )
    slow = {"outcome": "slow", "arm": "engine"}
    write_log(
        tmp_path / "two",
        [
            {**usual, **slow, "time": 2, "search": "c"},
            {**query, **slow, "time": 3, "search": "d", "unseen": "slow"},
            {**usual, "time": 5, "search": "e", "unseen": "further page", "outcome": "re-ranked"},
            {**usual, "time": 6, "search": "f", "outcome": "shadow", "index": "other"},
            {**usual, "time": 7, "outcome": "shadow"},  # of a log that has no ids
        ],
    )

    file = tmp_path / "searches.jsonl"
    write_searches([tmp_path / "one", tmp_path / "two"], file, "it")
    rows = [json.loads(line) for line in file.read_text().splitlines()]

    assert [row["query_id"] for row in rows] == ["a", "c", "d", "b"]
    assert [row["query_response_hit_ids"] for row in rows] == [
        ["a man", "c", "b"],
        ["a man", "b"],
        [],
        ["b", "c", "a man"],
    ]
    assert [row["swap"] for row in rows] == [0, 0, 0, 3]
    assert [row["arm"] for row in rows] == ["fair", "engine", "engine", "fair"]


@pytest.fixture
def log_of_two_indexes(opened: Callable[..., Seen], tmp_path: Path) -> Path:
    seen = opened()
    for index in ("it", "other"):
        for number in range(9):
            seen.add_shown(search(f"a {number}", index=index), "shadow", SHOWN)
    wait_for_records(tmp_path / "log", 18)
    return tmp_path / "log"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "name one by --corpus"),
        (["--corpus", "a"], "no such searches"),
        (["--queries", "log"], "brings its queries and weights"),
    ],
    ids=["no index", "another index", "queries"],
)
@pytest.mark.usefixtures("log_of_two_indexes")
def test_an_audit_says_which_index_of_a_log_it_needs(
    fairqr: Callable[..., Any], options: list[str], sentence: str
) -> None:
    ended = fairqr("audit", "--from-log", "log", "-o", "out", *options)
    assert sentence in ended.complaint()


@pytest.mark.usefixtures("log_of_two_indexes")
def test_an_audit_reads_the_searches_of_one_index(fairqr: Callable[..., Any]) -> None:
    """Also of a log whose folder was renamed."""
    os.rename("log", "of-one")
    report = audit_log(fairqr, "--corpus", "other", log="of-one")
    assert report["queries"]["weight"] == 9
