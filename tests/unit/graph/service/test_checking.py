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


KINDS = pytest.mark.parametrize("kind", ["search", "answer", "probe"])
SETTINGS: dict[Kind, Any] = {"search": Context, "answer": AnswerSettings, "probe": ProbeSettings}


@KINDS
def test_requests_have_all_parameters_of_the_python_api(kind: Kind) -> None:
    parameters = {*Context.model_fields, *SETTINGS[kind].model_fields}
    # A service has nobody who looks at the model's words.
    left_out = {"review", "attributes"} if kind == "probe" else {"review"}
    assert parameters - REQUESTS[kind].model_fields.keys() <= left_out


@KINDS
def test_requests_say_what_their_parameters_are(kind: Kind) -> None:
    fields = REQUESTS[kind].model_fields
    assert all(field.description for field in fields.values())
    assert fields["threshold"].description == Context.model_fields["threshold"].description


@KINDS
def test_what_is_kept_of_a_request_gives_the_same_again(
    capabilities: Capabilities, kind: Kind
) -> None:
    checked = check(capabilities, kind, target=["gender=female:0.5,male:0.5"], k=10)
    again = check_request(kind, parsed(kind, checked.body), ServiceLimits(), capabilities)
    assert again == checked
    assert checked.body["corpus"] == "notables"


def test_defaults_of_a_search_are_those_of_the_command(capabilities: Capabilities) -> None:
    context = check(capabilities, "search").context
    assert context.model_copy(update={"budget": Context().budget}) == Context()


def test_defaults_of_an_answer_are_those_of_the_command(capabilities: Capabilities) -> None:
    limits = ServiceLimits(documents=30)
    context = check(capabilities, "answer", limits, documents=30, attributes="gender").context
    assert (context.k, context.method) == (30, "baseline")
    assert context.attributes == ("gender",)


LOW_LIMITS = ServiceLimits(
    k=5, max_iterations=2, samples=3, depth=50, tokens=100, probe_documents=4
)


def test_a_default_above_a_limit_is_lowered(capabilities: Capabilities) -> None:
    context = check(capabilities, "search", LOW_LIMITS).context
    probe = check(capabilities, "probe", LOW_LIMITS).context
    assert (context.k, context.max_iterations, context.budget.tokens) == (5, 2, 100)
    assert context.strategy.depth == 50
    assert probe.probe.depth == 4


def test_a_ranker_reads_no_more_because_of_a_limit(capabilities: Capabilities) -> None:
    strategy = check(capabilities, "search", LOW_LIMITS, k=5, method="pairwise").context.strategy
    assert (strategy.reads, strategy.depth) == (20, 50)


@pytest.mark.parametrize(
    "body",
    [{"k": 6}, {"max_iterations": 3}, {"depth": 51}, {"budget": {"tokens": 101}}],
    ids=["k", "iterations", "depth", "tokens"],
)
def test_what_is_asked_for_above_a_limit_is_refused(
    capabilities: Capabilities, body: dict[str, Any]
) -> None:
    with pytest.raises(errors.LimitError, match="at most"):
        check(capabilities, "search", LOW_LIMITS, **body)


def test_a_refusal_names_its_limit(capabilities: Capabilities) -> None:
    with pytest.raises(errors.LimitError) as refused:
        check(capabilities, "answer", LOW_LIMITS, samples=4)
    assert (refused.value.limit, refused.value.most) == ("samples", 3)


def test_a_patience_beyond_all_bounds_is_refused(capabilities: Capabilities) -> None:
    with pytest.raises(errors.InputError, match="patience"):
        check(capabilities, "search", patience=10**30)


TWENTY_SAMPLES: dict[str, Any] = {"samples": 20, "documents": 1, "method": "fairqr"}


def test_what_answers_may_take_counts_against_the_limits(capabilities: Capabilities) -> None:
    limits = ServiceLimits(model_calls=30, tokens=50_000)
    context = check(capabilities, "answer", limits, **TWENTY_SAMPLES).context
    assert context.budget.model_calls == 10
    assert 0 < (context.budget.tokens or 0) < 20_000


def test_a_budget_below_the_limits_stays(capabilities: Capabilities) -> None:
    limits = ServiceLimits(model_calls=30, tokens=50_000)
    body = {**TWENTY_SAMPLES, "budget": {"model_calls": 3, "tokens": 7}}
    budget = check(capabilities, "answer", limits, **body).context.budget

    assert (budget.model_calls, budget.tokens) == (3, 7)


@pytest.mark.parametrize(
    ("limits", "exceeded"),
    [
        (ServiceLimits(model_calls=30, tokens=50_000), "model_calls"),
        (ServiceLimits(tokens=50_000), "tokens"),
    ],
    ids=["calls", "tokens"],
)
def test_more_samples_than_the_limits_allow_are_refused(
    capabilities: Capabilities, limits: ServiceLimits, exceeded: str
) -> None:
    with pytest.raises(errors.LimitError) as refused:
        check(capabilities, "answer", limits, **{**TWENTY_SAMPLES, "samples": 40})
    assert refused.value.limit == exceeded


PATTERN_AND_NAME = {"openai:gpt-*": ModelEntry(timeout=5), "openai:gpt-x": ModelEntry(timeout=7)}


def test_models_are_named_exactly_or_by_a_pattern(tmp_path: Path) -> None:
    capabilities = make_capabilities(tmp_path, models=PATTERN_AND_NAME)
    assert capabilities.model("openai:gpt-x")[1].timeout == 7
    assert capabilities.model("openai:gpt-4o")[1].timeout == 5


def test_the_default_model_is_named_or_the_first_that_is_no_pattern(tmp_path: Path) -> None:
    unnamed = make_capabilities(tmp_path, models=PATTERN_AND_NAME)
    named = make_capabilities(tmp_path, "openai:gpt-y", models=PATTERN_AND_NAME)
    assert unnamed.default_model == "openai:gpt-x"
    assert named.default_model == "openai:gpt-y"


@pytest.mark.parametrize("name", ["openai:gpt-*", "openai:o1", "openai:gpt-4 x", "", "feedback"])
def test_a_model_that_is_not_offered_is_refused(tmp_path: Path, name: str) -> None:
    capabilities = make_capabilities(tmp_path, models=PATTERN_AND_NAME)
    with pytest.raises(errors.NotAllowedError):
        capabilities.model(name)


@pytest.fixture
def replies_file(tmp_path: Path) -> Path:
    """A file of recorded replies that ships with nothing."""
    file = tmp_path / "replies.json"
    file.write_text('{"physicist": {"topic": ["quantum"]}}')
    return file


@pytest.fixture
def with_replies(tmp_path: Path, replies_file: Path) -> Capabilities:
    """What is offered where a pattern and a whole name offer files of replies."""
    models = {"recorded:*": ModelEntry(), f"recorded:{replies_file}": ModelEntry()}
    return make_capabilities(tmp_path, models=models)


def test_a_file_of_replies_is_named_by_its_whole_name(
    with_replies: Capabilities, replies_file: Path
) -> None:
    """A pattern opens the files that ship, and no other file on this machine."""
    name = f"recorded:{replies_file}"
    assert check(with_replies, "search", model=name).body["model"] == name

    shipped = "recorded:notables"
    assert check(with_replies, "search", model=shipped).body["model"] == shipped
    with pytest.raises(errors.NotAllowedError, match="files of replies by their whole names"):
        check(with_replies, "search", model="recorded:/etc/passwd")


@pytest.mark.parametrize(("kind", "task"), [("answer", "write answers"), ("probe", "rank")])
def test_a_file_of_replies_can_only_refine(
    with_replies: Capabilities, kind: Kind, task: str
) -> None:
    with pytest.raises(errors.InputError, match=f"can only refine queries, and .* {task};"):
        check(with_replies, kind, model="recorded:notables")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nope:x", "nobody knows this provider"),
        ("gpt-4o", "names no provider"),
        ("ollama:x", "langchain-ollama"),
        ("recorded:/nowhere.json", "cannot be read"),
    ],
)
def test_a_model_that_does_not_exist_is_refused_at_the_start(
    tmp_path: Path, name: str, reason: str
) -> None:
    with pytest.raises(errors.ConfigError, match=f"service.models: .*{reason}"):
        make_capabilities(tmp_path, models={name: ModelEntry()})


@pytest.fixture
def with_weights_and_judges(tmp_path: Path) -> Capabilities:
    models = {"openai:x": ModelEntry(), "monot5:castorini/*": ModelEntry()}
    return make_capabilities(tmp_path, models=models, attributors=["overlap", "llm*"])


def test_weights_that_are_offered_may_be_named(with_weights_and_judges: Capabilities) -> None:
    """Others may not; see the tests of security."""
    ranking = {"weights": "castorini/monot5-base"}
    check(with_weights_and_judges, "search", method="monot5", ranking=ranking)


@pytest.mark.parametrize("judge", ["overlap?threshold=0.5", "llm:openai:x"])
def test_a_judge_that_is_offered_may_be_named(
    with_weights_and_judges: Capabilities, judge: str
) -> None:
    body = check(with_weights_and_judges, "answer", attributor=judge).body
    assert body["attributor"] == judge


def test_the_default_corpus_is_the_configured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalog, "names", lambda self: ["notables", "people"])
    monkeypatch.setenv("FAIRQR_CORPUS", "people")
    assert make_capabilities(tmp_path).corpora() == ["people", "notables"]
    assert make_capabilities(tmp_path, corpora=("notables", "people")).corpus(None) == "notables"

    monkeypatch.setenv("FAIRQR_CORPUS", "absent")
    assert make_capabilities(tmp_path).corpus(None) == "notables"


@pytest.fixture
def source_file(tmp_path: Path) -> Path:
    file = tmp_path / "web.source.yaml"
    file.write_text(
        "name: web\nengine: run\nruns: a.run\nattributes:\n  gender: {field: g, groups: [f, m]}\n"
    )
    return file


def test_configured_sources_are_offered_by_name(tmp_path: Path, source_file: Path) -> None:
    """Those that the configuration lists are, whatever `corpora` says."""
    capabilities = make_capabilities(tmp_path, corpora=("notables",), sources=(source_file,))
    assert capabilities.corpora() == ["notables", "web"]
    assert capabilities.corpus("web") == "web"
    assert capabilities.sources["web"].engine == "run"


@pytest.mark.parametrize("name", ["{folder}/web.source.yaml", "web.source.yaml", "./web", "other"])
def test_a_source_is_never_named_by_its_path(tmp_path: Path, source_file: Path, name: str) -> None:
    capabilities = make_capabilities(tmp_path, sources=(source_file,))
    with pytest.raises((errors.IndexNotFoundError, errors.NotAllowedError)):
        capabilities.corpus(name.format(folder=tmp_path))


def test_a_request_brings_no_source(capabilities: Capabilities) -> None:
    with pytest.raises(errors.InputError, match="corpus"):
        check(capabilities, "search", corpus={"engine": "http", "url": "http://inside/"})


def test_names_of_sources_are_unique(tmp_path: Path, source_file: Path) -> None:
    with pytest.raises(errors.ConfigError, match="Two sources"):
        make_capabilities(tmp_path, sources=(source_file, source_file))


def test_a_source_cannot_have_the_name_of_a_built_in_corpus(
    tmp_path: Path, source_file: Path
) -> None:
    source_file.write_text(source_file.read_text().replace("name: web", "name: notables"))
    with pytest.raises(errors.InputError, match="'notables' is the name of a built-in corpus"):
        make_capabilities(tmp_path, sources=(source_file,))


@pytest.mark.parametrize(
    ("kind", "body"),
    [("search", {}), ("answer", {"documents": 1}), ("probe", {})],
    ids=["search", "answer", "probe"],
)
def test_defaults_fit_a_depth_below_them(
    capabilities: Capabilities, kind: Kind, body: dict[str, int]
) -> None:
    context = check(capabilities, kind, ServiceLimits(depth=2), **body).context
    assert context.k <= 2
    assert (context.strategy.depth or 0) <= 2


@pytest.mark.parametrize("kind", ["search", "probe"])
def test_more_ranks_than_the_depth_are_refused(capabilities: Capabilities, kind: Kind) -> None:
    with pytest.raises(errors.LimitError, match="allows at most 2"):
        check(capabilities, kind, ServiceLimits(depth=2), k=3)


@pytest.mark.parametrize(
    ("offered", "usual"), [(["*", "overlap"], "overlap"), (["*"], "none"), ([], "none")]
)
def test_the_default_judge_is_the_first_that_is_no_pattern(
    tmp_path: Path, offered: list[str], usual: str
) -> None:
    capabilities = make_capabilities(tmp_path, attributors=offered)
    assert check(capabilities, "answer").body["attributor"] == usual
