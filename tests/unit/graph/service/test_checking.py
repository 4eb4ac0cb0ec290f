"""Requests: typed as the Python API is, within the limits, and of what is offered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairqr.base import errors
from fairqr.graph.answer.context import AnswerSettings
from fairqr.graph.probe.context import ProbeSettings
from fairqr.graph.search.context import Context
from fairqr.graph.service.configuration import ModelEntry, ServiceLimits, ServiceSettings
from fairqr.graph.service.execution.capabilities import Capabilities
from fairqr.graph.service.execution.checking import CheckedRequest, check_request
from fairqr.graph.service.execution.requests import REQUESTS, parsed
from fairqr.graph.service.records import Kind
from fairqr.retrieval.sources.catalog import Catalog


@pytest.fixture
def capabilities(tmp_path: Path) -> Capabilities:
    return make_capabilities(tmp_path)


def make_capabilities(folder: Path, default: str | None = None, **settings: Any) -> Capabilities:
    return Capabilities(ServiceSettings(**settings), Catalog(folder), default)


def check(
    capabilities: Capabilities, kind: Kind, limits: ServiceLimits | None = None, **body: Any
) -> CheckedRequest:
    needed = {
        "search": {"query": "physicist"},
        "answer": {"question": "Who?"},
        "probe": {"query": "physicist", "attribute": "gender", "protected": "female"},
    }
    return check_request(
        kind, parsed(kind, {**needed[kind], **body}), limits or ServiceLimits(), capabilities
    )


def test_requests_have_all_parameters_of_the_python_api_and_say_what_they_are() -> None:
    more: dict[Kind, Any] = {"search": Context, "answer": AnswerSettings, "probe": ProbeSettings}
    for kind, model in more.items():
        fields = REQUESTS[kind].model_fields
        expected = {*Context.model_fields, *model.model_fields}
        # A service has nobody who looks at the model's words.
        left_out = {"review", "attributes"} if kind == "probe" else {"review"}
        assert expected - fields.keys() <= left_out
        assert all(field.description for field in fields.values())
        assert fields["threshold"].description == Context.model_fields["threshold"].description


@pytest.mark.parametrize("kind", ["search", "answer", "probe"])
def test_what_is_kept_of_a_request_gives_the_same_again(
    capabilities: Capabilities, kind: Kind
) -> None:
    asked = check(capabilities, kind, target=["gender=female:0.5,male:0.5"], k=10)
    assert check_request(kind, parsed(kind, asked.body), ServiceLimits(), capabilities) == asked
    assert asked.body["corpus"] == "notables"


def test_defaults_are_those_of_the_command(capabilities: Capabilities) -> None:
    search = check(capabilities, "search").context
    assert search.model_copy(update={"budget": Context().budget}) == Context()
    answer = check(
        capabilities,
        "answer",
        documents=30,
        attributes="gender",
        limits=ServiceLimits(documents=30),
    )
    assert (answer.context.k, answer.context.method) == (30, "baseline")
    assert answer.context.attributes == ("gender",)


def test_a_default_above_a_limit_is_lowered_and_what_is_asked_for_is_refused(
    capabilities: Capabilities,
) -> None:
    limits = ServiceLimits(
        k=5, max_iterations=2, samples=3, depth=50, tokens=100, probe_documents=4
    )
    context = check(capabilities, "search", limits).context
    assert (context.k, context.max_iterations, context.budget.tokens) == (5, 2, 100)
    assert context.strategy.depth == 50
    strategy = check(capabilities, "search", limits, k=5, method="pairwise").context.strategy
    assert (strategy.reads, strategy.depth) == (20, 50), "a ranker reads no more because of a limit"
    assert check(capabilities, "probe", limits).context.probe.depth == 4
    for asked in ({"k": 6}, {"max_iterations": 3}, {"depth": 51}, {"budget": {"tokens": 101}}):
        with pytest.raises(errors.LimitError, match="at most"):
            check(capabilities, "search", limits, **asked)
    with pytest.raises(errors.InputError, match="patience"):
        check(capabilities, "search", patience=10**30)
    with pytest.raises(errors.LimitError) as caught:
        check(capabilities, "answer", limits, samples=4)
    assert (caught.value.limit, caught.value.most) == ("samples", 3)


def test_what_answers_may_take_counts_against_the_limits_of_a_run(
    capabilities: Capabilities,
) -> None:
    limits = ServiceLimits(model_calls=30, tokens=50_000)
    asked = {"samples": 20, "documents": 1, "method": "fairqr"}
    context = check(capabilities, "answer", limits, **asked).context
    assert context.budget.model_calls == 10
    assert 0 < (context.budget.tokens or 0) < 20_000
    own = {"budget": {"model_calls": 3, "tokens": 7}}
    budget = check(capabilities, "answer", limits, **asked, **own).context.budget
    assert (budget.model_calls, budget.tokens) == (3, 7)
    for more, limit in ((limits, "model_calls"), (ServiceLimits(tokens=50_000), "tokens")):
        with pytest.raises(errors.LimitError) as caught:
            check(capabilities, "answer", more, **{**asked, "samples": 40})
        assert caught.value.limit == limit


def test_models_are_named_exactly_or_by_a_pattern(tmp_path: Path) -> None:
    entries = {"openai:gpt-*": ModelEntry(timeout=5), "openai:gpt-x": ModelEntry(timeout=7)}
    capabilities = make_capabilities(tmp_path, models=entries)
    assert capabilities.model("openai:gpt-x")[1].timeout == 7
    assert capabilities.model("openai:gpt-4o")[1].timeout == 5
    assert capabilities.default_model == "openai:gpt-x"
    assert (
        make_capabilities(tmp_path, "openai:gpt-y", models=entries).default_model == "openai:gpt-y"
    )
    for name in ("openai:gpt-*", "openai:o1", "openai:gpt-4 x", "", "feedback"):
        with pytest.raises(errors.NotAllowedError):
            capabilities.model(name)


def test_a_file_of_replies_is_named_exactly_and_only_refines(tmp_path: Path) -> None:
    """A pattern opens the files that ship, and no other file on this machine."""
    replies = tmp_path / "replies.json"
    replies.write_text('{"physicist": {"topic": ["quantum"]}}')
    listed = f"recorded:{replies}"
    capabilities = make_capabilities(
        tmp_path, models={"recorded:*": ModelEntry(), listed: ModelEntry()}
    )
    for name in (listed, "recorded:notables"):
        assert check(capabilities, "search", model=name).body["model"] == name
    with pytest.raises(errors.NotAllowedError, match="files of replies by their whole names"):
        check(capabilities, "search", model="recorded:/etc/passwd")
    for kind, what in (("answer", "write answers"), ("probe", "rank")):
        with pytest.raises(errors.InputError, match=f"can only refine queries, and .* {what};"):
            check(capabilities, kind, model="recorded:notables")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nope:x", "knows no such provider"),
        ("gpt-4o", "names no provider"),
        ("ollama:x", "langchain-ollama"),
        ("recorded:/nowhere.json", "cannot be read"),
    ],
)
def test_models_that_do_not_exist_are_refused_at_the_start(
    tmp_path: Path, name: str, why: str
) -> None:
    with pytest.raises(errors.ConfigError, match=f"service.models: .*{why}"):
        make_capabilities(tmp_path, models={name: ModelEntry()})


def test_weights_and_judges_that_are_offered_may_be_named(tmp_path: Path) -> None:
    """Others may not; see the tests of security."""
    models = {"openai:x": ModelEntry(), "monot5:castorini/*": ModelEntry()}
    capabilities = make_capabilities(tmp_path, models=models, attributors=["overlap", "llm*"])
    check(capabilities, "search", method="monot5", ranking={"weights": "castorini/monot5-base"})
    for judge in ("overlap?threshold=0.5", "llm:openai:x"):
        assert check(capabilities, "answer", attributor=judge).body["attributor"] == judge


def test_the_corpus_where_none_is_named_is_the_configured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalog, "names", lambda self: ["notables", "people"])
    monkeypatch.setenv("FAIRQR_CORPUS", "people")
    assert make_capabilities(tmp_path).corpora() == ["people", "notables"]
    assert make_capabilities(tmp_path, corpora=("notables", "people")).corpus(None) == "notables"
    monkeypatch.setenv("FAIRQR_CORPUS", "absent")
    assert make_capabilities(tmp_path).corpus(None) == "notables"


def test_sources_are_offered_by_name_and_never_by_path(tmp_path: Path) -> None:
    """Those that the configuration lists, whatever `corpora` says; a request brings none."""
    file = tmp_path / "web.source.yaml"
    file.write_text(
        "name: web\nengine: run\nruns: a.run\nattributes:\n  gender: {field: g, groups: [f, m]}\n"
    )
    capabilities = make_capabilities(tmp_path, corpora=("notables",), sources=(file,))
    assert capabilities.corpora() == ["notables", "web"]
    assert capabilities.corpus("web") == "web"
    assert capabilities.sources["web"].engine == "run"
    for name in (str(file), file.name, "./web", "other"):
        with pytest.raises((errors.IndexNotFoundError, errors.NotAllowedError)):
            capabilities.corpus(name)
    with pytest.raises(errors.InputError, match="corpus"):
        check(capabilities, "search", corpus={"engine": "http", "url": "http://inside/"})
    with pytest.raises(errors.ConfigError, match="Two sources"):
        make_capabilities(tmp_path, sources=(file, file))
    file.write_text(file.read_text().replace("name: web", "name: notables"))
    with pytest.raises(errors.InputError, match="'notables' is the name of a built-in corpus"):
        make_capabilities(tmp_path, sources=(file,))


@pytest.mark.parametrize("kind", ["search", "answer", "probe"])
def test_defaults_fit_a_depth_below_them(capabilities: Capabilities, kind: Kind) -> None:
    found = check(
        capabilities, kind, ServiceLimits(depth=2), **({"documents": 1} if kind == "answer" else {})
    )
    assert found.context.k <= 2
    assert (found.context.strategy.depth or 0) <= 2
    if kind != "answer":
        with pytest.raises(errors.LimitError, match="allows at most 2"):
            check(capabilities, kind, ServiceLimits(depth=2), k=3)


@pytest.mark.parametrize(
    ("offered", "usual"), [(["*", "overlap"], "overlap"), (["*"], "none"), ([], "none")]
)
def test_answers_are_judged_by_the_first_attributor_that_is_no_pattern(
    tmp_path: Path, offered: list[str], usual: str
) -> None:
    capabilities = make_capabilities(tmp_path, attributors=offered)
    assert check(capabilities, "answer").body["attributor"] == usual
