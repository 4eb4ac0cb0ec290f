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
TOLD: dict[str, Any] = {
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
WOMEN = {**TOLD, "ids": ["x", "y", "z"], "groups": {"gender": ["female"] * 3}}


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Seen]:
    def make(**changes: Any) -> Seen:
        given = {"cluster": "http://127.0.0.1:9", "indexes": {"it": {"source": "it.yaml"}}}
        settings = ProxySettings.model_validate({**given, "folder": tmp_path, "log": "log"})
        return Seen(settings.model_copy(update=changes))  # a log that is smaller than allowed, too

    return make


def search(words: str, start: int = 0, share: float = 0.0, index: str = "it") -> ProxiedSearch:
    body = {"query": {"match": {"bio": words}}, "from": start, "size": 2}
    how = ProxiedIndex(source=Path("it.yaml"), mode="fair", share=share)
    found = planned(body, {}, how, index)
    assert isinstance(found, ProxiedSearch)
    return found


def show(seen: Seen, *words: str, told: dict[str, Any] = TOLD, share: float = 0.0) -> None:
    for one in words:
        seen.add_shown(search(one, share=share), "re-ranked" if share else "shadow", told)


def lines(folder: Path) -> list[dict[str, Any]]:
    found: list[bytes] = []
    for name in (OLDER, LOG):
        with suppress(FileNotFoundError):  # or it is about to become the older one
            found += (folder / name).read_bytes().split(b"\n")
    records = []
    for line in filter(None, found):
        with suppress(json.JSONDecodeError):  # the newest may be half written
            records.append(json.loads(line))
    return records


def figures(seen: Seen) -> dict[str, float]:
    text = generate_latest(seen.registry).decode()
    return {name: float(it) for name, it in re.findall(r"^([^# ].*) (\S+)$", text, re.MULTILINE)}


def test_a_log_is_private_bounded_and_keeps_the_newest(
    opened: Callable[..., Seen], tmp_path: Path
) -> None:
    seen = opened(log_bytes=20_000)
    for number in range(200):
        show(seen, f"secret {number}")
    newest = search("secret 199").key
    until(lambda: newest in {it["query"] for it in lines(tmp_path / "log")})
    files = [*(tmp_path / "log").iterdir()]
    assert 10_000 < sum(it.stat().st_size for it in files) <= 20_000
    assert {stat.S_IMODE(it.stat().st_mode) for it in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700
    assert not any(b"secret" in it.read_bytes() for it in files)
    assert (tmp_path / "log" / OLDER).exists()
    assert b"\n\n" not in (tmp_path / "log" / LOG).read_bytes()
    assert (tmp_path / "log" / LOG).read_bytes()[:1] == b"{"
    kept = [it["query"] for it in lines(tmp_path / "log")]
    assert kept == [search(f"secret {it}").key for it in range(200 - len(kept), 200)]


def test_a_disk_without_room_costs_records_and_nothing_else(
    opened: Callable[..., Seen], tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / LOG).symlink_to("/dev/full")
    seen = opened(log_words=True, log_bytes=20_000)
    lost = 'fairqr_proxy_log_lost_total{reason="ENOSPC"}'
    show(seen, "one", "two")
    until(lambda: figures(seen).get(lost) == 2)
    (tmp_path / "log" / LOG).unlink()
    (tmp_path / "log" / LOG).write_text('{"half')  # of a record, as a full disk leaves it
    show(seen, "three")
    until(lambda: b"three" in (tmp_path / "log" / LOG).read_bytes())
    first, second = (tmp_path / "log" / LOG).read_text().split()[0], figures(seen)[lost]
    assert (first, second) == ('{"half', 2)
    show(seen, *["x" * 100] * 3, told={**TOLD, "ids": ["y" * 100_000]})
    until(lambda: figures(seen).get('fairqr_proxy_log_lost_total{reason="EFBIG"}') == 3)
    assert len((tmp_path / "log" / LOG).read_bytes()) < 1_000_000


def test_the_log_of_a_proxy_that_is_ending_is_waited_for(
    opened: Callable[..., Seen], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log").mkdir()
    lock = FileLock(tmp_path / "log" / ".lock", thread_local=False)
    lock.acquire()
    ends = threading.Timer(0.1, lock.release)
    ends.start()
    opened()
    ends.join()
    assert "is in use; waiting 30 s" in caplog.text


def test_a_log_has_one_proxy(
    opened: Callable[..., Seen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairqr.graph.service.proxy.seen.ENDING", 0.1)
    first = opened()
    with pytest.raises(ConfigError, match="another proxy uses it"):
        opened()
    del first
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used: Not a directory"):
        opened(log=Path("file/log"))


def test_figures_count_what_was_shown_and_clients_cannot_fill_the_memory(
    opened: Callable[..., Seen],
) -> None:
    seen = opened(log=None)
    show(seen, "a", "b", "c")
    show(seen, "d", share=1.0)
    seen.add_unseen(search("d", 2, 1.0), "re-ranked", "further page")  # of the same list
    for number in range(200):
        seen.add_unseen(search("e"), f"field of a client {number}", "empty")
    seen.add_shown(search("f"), "sort", {"exposure": {"target": HALVES, "shown": HALVES}})
    seen.add_unseen(search("a", share=1.0), "slow", "busy")
    found = figures(seen)
    of = 'fairqr_proxy_exposure_{}{{attribute="gender",group="female",index="it",list="{}"}}'
    sums = {it: found[of.format("sum", it)] for it in ("shown", "engine", "fair", "target")}
    assert sums == pytest.approx({"shown": 0.9, "engine": 0.0, "fair": 1.6, "target": 2.5})
    assert found[of.format("count", "shown")] == 5

    def counts(name: str) -> dict[str, float]:
        pattern = re.compile(rf'fairqr_proxy_{name}_total{{index="it",\w+="(.*)"}}')
        return {by[1]: n for it, n in found.items() if (by := pattern.fullmatch(it))}

    assert counts("searches") == {"shadow": 3, "re-ranked": 2, "other": 200, "sort": 1, "slow": 1}
    assert counts("unseen") == {"further page": 1, "empty": 200, "busy": 1}


def test_thousands_of_groups_are_in_the_log_and_are_no_series(
    opened: Callable[..., Seen], tmp_path: Path
) -> None:
    seen = opened()
    sellers = {"seller": {"one": 0.5, "all others": 0.5}}
    shares = {"exposure": {"target": sellers, "shown": sellers}, "ids": [], "groups": {}}
    seen.add_shown(search("a"), "sort", shares)
    until(lambda: len(lines(tmp_path / "log")) == 1)
    assert lines(tmp_path / "log")[0]["exposure"]["shown"] == sellers
    assert not any("exposure" in name for name in figures(seen))


def test_the_dashboard_and_the_alerts_name_figures_that_there_are(
    opened: Callable[..., Seen],
) -> None:
    board = json.loads((DOCS / "proxy-dashboard.json").read_text())
    rules = yaml.safe_load((DOCS / "proxy-alerts.yaml").read_text())
    asked = [it["expr"] for panel in board["panels"] for it in panel["targets"]]
    asked += [it["expr"] for group in rules["groups"] for it in group["rules"]]
    seen = opened()
    show(seen, "a")
    show(seen, "b", told={**TOLD, "seconds": 0.1}, share=1.0)
    seen.add_unseen(search("c"), "slow", "busy")
    seen._lost.labels("slow")
    there = {name.split("{")[0] for name in figures(seen)}
    named = {it for text in asked for it in re.findall(r"fairqr_proxy_\w+", text)}
    assert len(asked) > 6
    assert named <= there
    assert {it for it in there if not it.endswith("_created")} - named <= {
        "fairqr_proxy_added_seconds_count",
        "fairqr_proxy_added_seconds_sum",
    }


def audited(fairqr: Callable[..., Any], *more: str) -> dict[str, Any]:
    done = fairqr("audit", *more, "--attribute", "gender", "--json")
    assert done.code == 0, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"warned": done.stderr}


def test_an_audit_of_a_log_says_who_was_seen_by_whom_asked(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    """All the exposure of women is where nobody looks: by lists they have half, by people 1 %."""
    seen = opened(log_words=True)
    show(seen, *[f"asked {it % 9}" for it in range(9 * 99)])
    show(seen, *[f"never asked {it}" for it in range(9)], told=WOMEN)
    until(lambda: len(lines(tmp_path / "log")) == 9 * 100)
    with (tmp_path / "log" / LOG).open("a") as log:
        log.write('\n{"index": "it", "que')
    found = audited(fairqr, "--from-log", "log", "-o", "out")
    shares = {it["group"]: it["exposure"]["value"] for it in found["groups"]}
    assert shares == {"female": pytest.approx(0.01), "male": pytest.approx(0.99), "other": 0}
    assert (found["queries"]["asked"], found["queries"]["weight"]) == (18, 900)
    assert found["spec"]["k"] == 2  # as many as searches asked for
    assert found["spec"]["target"] == "uniform:1 gender=female:0.5,male:0.5,other:0"
    assert "damaged, and left out: 1." in found["warned"]
    assert found["lists"]["arms"] == []
    report = Path("out/report.md").read_text()
    assert re.search(r"\| relevance \| 100.0% .*\| 90.0% .*\| −10.0%", report)
    assert "It reads 18 queries of a log" in report
    assert "by ranks alone" not in report
    assert fairqr("audit", "verify", "out").code == 0
    again = audited(fairqr, "--from-log", "log", "-o", "out")  # as it was made
    assert {**again, "warned": ""} == {**found, "warned": ""}
    lists = Path("out/raw/seen.json")
    lists.write_text(lists.read_text().replace("0.9", "0.8"))
    assert "raw/seen.json was changed" in fairqr("audit", "verify", "out").stderr


def test_a_report_says_how_many_lists_were_made_without_texts(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    seen = opened()
    show(seen, *[f"asked {it}" for it in range(6)])
    show(seen, *[f"not encoded {it}" for it in range(3)], told={**TOLD, "by": "ranks"})
    until(lambda: len(lines(tmp_path / "log")) == 9)
    audited(fairqr, "--from-log", "log", "-o", "out")
    report = Path("out/report.md").read_text()
    assert "by texts in 6 of 9 queries, by ranks alone in the others" in report


def test_two_arms_stand_beside_each_other(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    """A query that was shown both lists counts in both; whatever its words are, it is audited."""
    seen = opened(log_words=True)
    for number in range(30):
        fair = {"gender": {"female": 0.3 + 0.01 * number, "male": 0.0}}
        some = {**TOLD, "exposure": {**TOLD["exposure"], "fair": fair}}
        show(seen, f"asked {number} \ud800", told=some)
        show(seen, f"asked {number} \ud800", told=some, share=1.0)
    until(lambda: len(lines(tmp_path / "log")) == 60)
    found = audited(fairqr, "--from-log", "log", "-o", "out")
    (women,) = (it for it in found["lists"]["arms"] if it["name"] == "gender: female")
    assert (women["engine"]["queries"], women["fair"]["queries"]) == (30, 30)
    assert women["change"]["value"] == pytest.approx(0.445)
    low, high = women["change"]["interval"]
    assert 0.2 < low < 0.445 < high < 0.7


PASSED = {name: TOLD[name] for name in ("k", "discount", "page", "ids", "groups")} | {
    "exposure": {name: TOLD["exposure"][name] for name in ("engine", "target", "shown")}
}
"""What is known of a page that passed."""


def women_in(found: dict[str, Any]) -> float:
    (women,) = (it["exposure"]["value"] for it in found["groups"] if it["group"] == "female")
    return float(women)


def test_each_list_of_a_query_counts_as_often_as_it_was_shown(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    """Whatever made it another one: the index, its labels, the size of the page, or the arm."""
    relabelled = {**TOLD, "groups": {"gender": ["female", "male", "male"]}}
    shown: list[tuple[int, float]] = []
    seen = opened(log_words=True)

    def add(times: int, women: float, told: dict[str, Any], outcome: str, share: float) -> None:
        shown.append((times, women))
        for _ in range(times):
            seen.add_shown(search("a", share=share), outcome, told)

    second = 1 / math.log2(3)
    add(9, 0.0, TOLD, "shadow", 0.0)
    add(1, 1.0, WOMEN, "shadow", 0.0)
    add(2, 1 / (1 + second), relabelled, "shadow", 0.0)
    add(3, 1.0, {**relabelled, "page": 1}, "shadow", 0.0)
    add(4, 0.0, PASSED, "name", 1.0)
    add(5, 0.0, TOLD, "slow", 1.0)
    add(6, second / 2 / (1 + second), TOLD, "re-ranked", 1.0)
    add(2, 1.0, {**WOMEN, "quality": {}}, "shadow", 0.0)  # with pinned documents
    for number in range(8):  # so that there are intervals
        seen.add_shown(search(f"other {number}"), "shadow", TOLD)
    shown.append((8, 0.0))
    every = sum(times for times, _ in shown)
    until(lambda: len(lines(tmp_path / "log")) == every)
    found = audited(fairqr, "--from-log", "log", "-o", "out")
    mean = sum(times * women for times, women in shown) / every
    assert women_in(found) == pytest.approx(mean)
    assert (found["queries"]["asked"], found["queries"]["weight"]) == (8 + 8, every)
    asked = json.loads(Path("out/raw/queries.json").read_text())["queries"]
    assert len({it["id"] for it in asked if it["text"] == "a"}) == 8
    assert fairqr("audit", "verify", "out").code == 0


def test_a_page_of_documents_of_the_same_id_is_as_long_as_it_was(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    """An alias of several indexes finds such."""
    twice = {"ids": ["a", "a", "a#2"], "groups": {"gender": ["male", "male", "female"]}}
    seen = opened()
    for number in range(9):
        show(seen, f"asked {number}", told={**TOLD, **twice, "k": 3, "page": 3})
    until(lambda: len(lines(tmp_path / "log")) == 9)
    found = audited(fairqr, "--from-log", "log", "-o", "out")
    assert women_in(found) == pytest.approx(0.5 / (1 + 1 / math.log2(3) + 0.5))


def test_ranks_count_in_an_audit_as_the_proxy_counts_them(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    seen = opened()
    some = {**TOLD, "groups": {"gender": ["male", "female", "male"]}, "discount": "rbp(0.5)"}
    for number in range(9):
        show(seen, f"asked {number}", told=some)
    until(lambda: len(lines(tmp_path / "log")) == 9)
    assert women_in(audited(fairqr, "--from-log", "log", "-o", "out")) == pytest.approx(1 / 3)
    more = audited(fairqr, "--from-log", "log", "-o", "more", "-k", "3")
    assert women_in(more) == pytest.approx(1 / 3)  # nobody was shown a third


def test_the_memory_of_an_audit_does_not_grow_with_the_lines_of_a_log(tmp_path: Path) -> None:
    ids = [f"a document of a long id {number}".rjust(200, "-") for number in range(200)]
    labels = {"gender": ["male", "female"] * 100}
    for number in range(150):
        exposure = {**TOLD["exposure"], "shown": {"gender": {"male": number / 150}}}
        record = {**TOLD, "ids": ids, "groups": labels, "exposure": exposure, "order": []}
        own = {"index": "it", "query": f"{number % 50}", "arm": "engine", "outcome": "shadow"}
        with (tmp_path / LOG).open("a") as log:
            log.write(json.dumps({**record, **own}) + "\n")
    tracemalloc.start()
    logged = as_run([tmp_path], tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(logged.seen["lists"]) == 150
    assert peak < (tmp_path / LOG).stat().st_size / 4


def test_searches_of_several_logs_are_in_the_order_of_time_and_as_they_were_shown(
    tmp_path: Path,
) -> None:
    """Clicks name their ids; what a list without hits or a later page has is not of them."""
    usual = {**TOLD, "index": "it", "query": "k", "arm": "fair", "share": 0.5}
    shown = {**usual, "outcome": "re-ranked", "page": 3}
    swap = {"rank": 3, "is_swapped": True}
    for name, records in {
        "one": [
            {**shown, "time": 1, "search": "a"},
            {**shown, "time": 4, "search": "b", "swap": swap},
        ],
        "two": [
            {**usual, "time": 2, "search": "c", "outcome": "slow", "arm": "engine"},
            {"index": "it", "query": "k", "time": 3, "search": "d", "arm": "engine", "share": 0.5}
            | {"unseen": "slow", "outcome": "slow"},
            {**usual, "time": 5, "search": "e", "unseen": "further page", "outcome": "re-ranked"},
            {**usual, "time": 6, "search": "f", "outcome": "shadow", "index": "other"},
            {**usual, "time": 7, "outcome": "shadow"},  # of a log that has no ids
        ],
    }.items():
        (tmp_path / name).mkdir()
        text = "\n".join([*map(json.dumps, records), '{"half'])
        (tmp_path / name / LOG).write_text(text)
    file = tmp_path / "searches.jsonl"
    write_searches([tmp_path / "one", tmp_path / "two"], file, "it")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["query_id"]: row["query_response_hit_ids"] for row in rows} == {
        "a": ["a man", "c", "b"],
        "c": ["a man", "b"],
        "d": [],
        "b": ["b", "c", "a man"],
    }
    assert [row["swap"] for row in rows] == [0, 0, 0, 3]
    assert [row["arm"] for row in rows] == ["fair", "engine", "engine", "fair"]


def test_an_audit_says_which_log_and_index_it_needs(
    opened: Callable[..., Seen], fairqr: Callable[..., Any], tmp_path: Path
) -> None:
    seen = opened()
    for index in ("it", "other"):
        for number in range(9):
            seen.add_shown(search(f"a {number}", index=index), "shadow", TOLD)
    until(lambda: len(lines(tmp_path / "log")) == 18)
    asking = ("audit", "--from-log", "log", "-o", "out")
    assert "name one by --corpus" in fairqr(*asking).complaint()
    assert "no such searches" in fairqr(*asking, "--corpus", "a").complaint()
    assert "brings its queries and weights" in fairqr(*asking, "--queries", "log").complaint()
    os.rename("log", "of-one")
    found = audited(fairqr, *asking[1:], "--from-log", "of-one", "--corpus", "other")
    assert found["queries"]["weight"] == 9
