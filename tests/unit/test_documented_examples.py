"""The examples of the documentation are what they claim to be; the integration tests run them."""

from __future__ import annotations

import doctest
import math
import pkgutil
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fairqr.agents.ranking.preference import PairOutcome, pair_figures
from fairqr.base.errors import ConfigError
from fairqr.base.settings import find
from fairqr.evaluation.audit.bundle import Observation
from fairqr.evaluation.audit.concentration import gini_index
from fairqr.evaluation.audit.figures import ESTIMATES
from fairqr.evaluation.evaluate import evaluate
from fairqr.evaluation.measures.kinds import BY_GROUP, KINDS
from fairqr.evaluation.probes.listwise import (
    PLACE,
    RATIO,
    exposure_difference_test,
    list_measures,
)
from fairqr.evaluation.probes.pairwise import SHARES
from fairqr.evaluation.probes.store import RankedList
from fairqr.evaluation.rag.measures import Name, greatest_utilities, measure_record
from fairqr.evaluation.rag.store import PolicyRecord
from fairqr.graph.running import RETRIEVE
from fairqr.graph.service.configuration import service_settings
from fairqr.graph.stream import NODES
from fairqr.retrieval.rerankers.base import Candidates, by_rank
from fairqr.retrieval.rerankers.certificate import certify
from fairqr.retrieval.rerankers.fair import FairStep
from fairqr.retrieval.sources.credentials import credentials_for, named_credentials
from fairqr.retrieval.sources.source import Source, load_source
from tests.unit.evaluation.audit.examples import measured, queries_of
from tests.unit.evaluation.probes.made import query_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("[!r]*/*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of a page in one language."""
    return re.findall(rf"(?ms)^```{language}(?: title=[^\n]*)?\n(.*?)^```", page.read_text("utf-8"))


SOURCES = [
    pytest.param(text, id=f"{page.stem}-{yaml.safe_load(text)['name']}")
    for page in PAGES
    for text in blocks(page, "yaml")
    if "engine:" in text
]


@pytest.mark.parametrize("example", SOURCES)
def test_an_example_of_a_source_is_one(example: str, tmp_path: Path) -> None:
    file = tmp_path / "example.source.yaml"
    file.write_text(example)
    source = load_source(file)
    assert type(source) is Source.kinds[source.engine]


def test_there_is_a_source_of_each_kind_but_opensearch() -> None:
    engines = {yaml.safe_load(str(each.values[0]))["engine"] for each in SOURCES}
    assert engines == set(Source.kinds) - {"opensearch"}


def test_the_groups_of_the_first_source_are_as_told(tmp_path: Path) -> None:
    (example,) = (it for it in SOURCES if it.id == "attach-elasticsearch-people")
    source = Source.model_validate(yaml.safe_load(str(example.values[0])))
    assert source.attributes["gender"].group_of("F") == "female"
    assert source.attributes["era"].group_of(1985) == "younger"


def test_the_settings_are_read(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks(DOCS / "how-to" / "choose-a-model.md", "toml")
    settings_file.write_text(example)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hidden")
    assert find("model").value == tomllib.loads(example)["model"]
    assert [entry.key is not None for entry in service_settings().models.values()] == [True]
    assert list(named_credentials()) == ["web"]


def test_a_key_goes_to_its_own_address_alone(settings_file: Path) -> None:
    (example,) = blocks(DOCS / "how-to" / "attach-elasticsearch.md", "toml")
    settings_file.write_text(example)
    assert credentials_for("production", "http://localhost:9200").api_key is not None
    with pytest.raises(ConfigError, match="may not be sent to"):
        credentials_for("production", "http://localhost:9201")


def test_each_measure_of_the_glossary_has_the_value_that_it_says() -> None:
    """What is worked out by hand and what fairqr computes are that value, too."""
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = [re.split(r" ?\| ?", line)[1:-1] for line in text.splitlines() if line[:1] == "|"]
    ranked = [row for row in rows if row[0].isdigit()]
    worked = [row for row in rows if re.fullmatch(r"−?[\d.]+", row[1])]
    measures = [row[0].strip("`") for row in worked if len(row) == 4]
    found = evaluate(
        {"q": [document for _, document, *_ in ranked]},
        {"q": {document: int(relevant == "yes") for _, document, _, relevant, _ in ranked}},
        ",".join(measures),
        groups={document: group for _, document, group, *_ in ranked},
        target="uniform:1",
    )
    values = dict(zip(measures, found.mean.values(), strict=True)) | of_other_examples()
    for names, value, here, *_ in worked:
        for name in re.findall("`(.+?)`", names):
            computed = values.pop(name)
            assert float(value.replace("−", "-")) == round(computed, 3), name
            assert by_hand(here.strip("`")) == pytest.approx(computed, abs=1.5e-3), name
    assert not values
    kinds = {kind for kind in KINDS if not kind.endswith(BY_GROUP)}
    assert {re.split(r"[@(]", measure)[0] for measure in measures} == kinds
    assert sum("attribute=" in measure for measure in measures) == len(KINDS) - len(kinds)


def of_other_examples() -> dict[str, Any]:
    """Measure what the glossary says of an audit, of fair RAG and of a probe."""
    given = yaml.safe_load((ROOT / "tests" / "unit" / "glossary.yaml").read_text(encoding="utf-8"))
    women = measured(queries_of(1), [Observation(**given["answer"])], **given["audit"]).groups[0]
    record = PolicyRecord(**given["samples"])
    rag, _ = measure_record(record, greatest_utilities([record]), np.array([0.0, 1.0, 1.0]))
    ranked = list_measures(query_of("q", 1, 1, 1, 0), RankedList(**given["ranking"]), 3)
    difference, _ = exposure_difference_test(
        *([ranked[it]] for it in ("ratio", "share", "ratio_of_relevance")), ""
    )
    pairs = pair_figures([PairOutcome("q", *it) for it in given["pairs"]], np.random.default_rng(0))
    values = {name: getattr(women, name).value for name in ESTIMATES[:-2]}  # others need judgements
    values["gini"] = gini_of(given)
    values |= of_a_search(given["search"])
    values |= {name: rag[name] for name in Name}
    values |= {name: getattr(pairs, it).value for it, name in SHARES.items()}
    values |= {RATIO: ranked["ratio"], "ratio of relevance": ranked["ratio_of_relevance"]}
    return values | {
        PLACE: ranked["place"],
        "exposure difference": difference,
        "ratio": pairs.ratio,
    }


def gini_of(given: Mapping[str, Any]) -> float:
    """Return the Gini index of what the groups of the audited answer get."""
    audit = measured(queries_of(1), [Observation(**given["answer"])], **given["audit"])
    shares = [[it.exposure.value, it.target.value] for it in audit.groups]
    return gini_index(*np.array(shares).T)


def of_a_search(given: Mapping[str, Any]) -> dict[str, float]:
    """Measure the list of the fair step among given documents, and what bounds it."""
    ids = given["ids"]
    candidates = Candidates(
        ranking=by_rank(ids),
        memberships=[np.array(given["members"])],
        targets=[np.array(given["target"])],
        dimensions=["gender"],
        groups=[given["groups"]],
        relevance=np.array(given["relevance"]),
    )
    step = FairStep(order="estimated")
    fair = step.take(candidates, given["k"])
    assert [ids[position] for position in fair.positions] == given["list"]
    certificate = certify(candidates, step, fair.weight, given["k"], fair.positions.tolist())
    price = certificate.price["gender"]["female"]
    quality = step.objective(candidates, fair.weight, given["k"]).quality(fair.positions)
    return {**quality.figures, "bound": certificate.bound, "price": price}


def by_hand(formula: str) -> float:
    """Compute what the page writes out in numbers."""
    for sign, python in (("−", "-"), ("·", "*"), ("½", "0.5"), ("²", "**2")):
        formula = formula.replace(sign, python)
    assert re.fullmatch(r"(?:[\d.+*/() -]|log2|ln)+", formula)
    return float(eval(formula, {"log2": math.log2, "ln": math.log}))


@pytest.mark.promise("command")
def test_examples_of_a_python_session_give_what_they_say() -> None:
    """Every example of a Python session in the docs runs and gives what it says."""
    page = DOCS / "how-to" / "evaluate-runs.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted > 5
    assert found.failed == 0


def test_the_readme_and_the_pages_stay_short() -> None:
    """What is generated does not count, nor do numbers and commands."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    words = 0
    for page in [*DOCS.glob("*.md"), *DOCS.glob("[!r]*/*.md"), *DOCS.glob("re[fs]*/*.md")]:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        words += sum(bool(re.search(r"[^\W\d_]{2}", word)) for word in text.split())
    assert words <= 21_000


def test_links_of_pages_outside_the_site_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", (ROOT / name).read_text("utf-8")):
            generated = link.startswith("docs/reference/") and not link.endswith("audit-files.md")
            assert generated or (ROOT / link).exists(), f"{name}: {link}"


def test_the_functions_in_the_sketch_of_a_search_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\| `(\S+)\.py` \| `([\w.]+)` \|", text, re.MULTILINE)
    assert len(steps) == 10
    for module, name in steps:
        package = module.removeprefix("src/fairqr/").replace("/", ".")
        assert callable(pkgutil.resolve_name(f"fairqr.{package}:{name}")), name
        assert (ROOT / f"{module}.py").is_file(), module


@pytest.mark.parametrize("kind", ["answer", "probe"])
def test_the_table_of_graphs_has_their_nodes(kind: str) -> None:
    page = (DOCS / "how-to" / "use-from-python.md").read_text()
    (row,) = re.findall(rf"^\| {kind} \| .*", page, re.MULTILINE)
    first, *others = NODES[kind]
    assert f"`{' → '.join([first, RETRIEVE, *others])}`" in row
