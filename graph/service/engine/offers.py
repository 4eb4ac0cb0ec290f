"""What the service offers: the corpora, models, servers, prompts and judges to choose from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import httpx

from fairqr.agents.attribution.attributor import AttributorName
from fairqr.agents.refiner import FeedbackRefiner
from fairqr.base import errors
from fairqr.base.errors import one_line
from fairqr.base.settings import default_corpus, default_model
from fairqr.graph.answer.nodes import PROMPT as ANSWER
from fairqr.graph.search.context import METHODS, Context, Method
from fairqr.graph.service.configuration import ModelEntry, ServiceSettings
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.rerankers.registry import TRAINED
from fairqr.retrieval.sources.catalog import Catalog, check_name
from fairqr.retrieval.sources.corpus import BUILT_IN
from fairqr.retrieval.sources.source import Source, load_source

NOTHING = "none"
"""The name to give if nothing should judge answers."""

NEURAL = ("monot5", "monobert")
"""Rankers with a model of their own; the service offers those that its models list."""

LONGEST_NAME = 200
"""The most characters of a name that matches a pattern."""


class Offers:
    """What a request may name.

    Args:
        settings: The settings of the service.
        catalog: What can be searched.
        prompts: The prompts.
        model: The model for requests that name none. Defaults to the configured model if it is
            offered, and otherwise to the first offered model.

    Attributes:
        sources: The sources whose files the configuration lists, by name.

    Raises:
        SourceError: The file of a source is wrong.
        ConfigError: Two sources have the same name.
        InputError: A source has the name of a built-in corpus or an index.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        catalog: Catalog,
        prompts: PromptLibrary,
        model: str | None = None,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._prompts = prompts
        self._model = model or default_model()
        self._corpus = default_corpus()
        usual = (default_model(), FeedbackRefiner.name)
        self._models = settings.models or {name: ModelEntry() for name in usual}
        self.sources = _sources(settings.sources, catalog)
        # Every listed source is offered; `corpora` limits the rest.
        self._corpora = settings.corpora and (*settings.corpora, *self.sources)

    def corpora(self) -> list[str]:
        """Return the names of all offered corpora, the default first."""
        known = [*dict.fromkeys((*self.sources, *BUILT_IN, *self._catalog.names()))]
        first: str | None = self._corpus
        if self._corpora:
            known = [name for name in known if _named_by(self._corpora, name)]
            first = next((name for name in self._corpora if name in known), None)
        return sorted(known, key=lambda name: name != first)

    def corpus(self, name: str | None) -> str:
        """Return the name of the corpus to search; None means the default.

        Raises:
            NotAllowedError: It is not offered.
            IndexNotFoundError: It does not exist.
        """
        if name is None:
            # Without reading folders, if possible: this happens in each request.
            known = filter(self._is_known, self._corpora or [self._corpus])
            if (usual := next(known, None) or next(iter(self.corpora()), None)) is None:
                raise errors.IndexNotFoundError(
                    "The service has no index yet; create one with 'fairqr index create'."
                )
            return usual
        unknown = f"There is no index '{one_line(name, 60)}'; GET /v1/indexes lists all."
        try:
            check_name(name)  # anything else could be a path
        except errors.InputError:
            raise errors.IndexNotFoundError(unknown) from None
        if self._corpora:
            _require("index", "indexes", self._corpora, name)
        # Last, since it reads folders and happens twice in each run.
        if not self._is_known(name):
            raise errors.IndexNotFoundError(
                f"There is no index '{name}'; GET /v1/indexes lists all."
            )
        return name

    def _is_known(self, name: str) -> bool:
        return name in BUILT_IN or name in self.sources or name in self._catalog.names()

    def link(self, corpus: str | None) -> str | None:
        """Return the field with the documents' web addresses, if the source names one."""
        name = self.corpus(corpus)
        source = self.sources.get(name)
        if source is None and name in self._catalog.sources():
            source, _ = self._catalog.source(name)
        return source.link if source else None

    @property
    def default_model(self) -> str:
        """The model for requests that name none."""
        if _named_by(self._models, self._model):
            return self._model
        return next((name for name in self._models if "*" not in name), self._model)

    def models(self) -> list[str]:
        """Return the configured names and patterns of models, the default first."""
        names = [name for name in self._models if name not in NEURAL]
        return sorted(names, key=lambda name: name != self.default_model)

    def model(self, name: str | None) -> tuple[str, ModelEntry]:
        """Return the name and the configuration of a model; None means the default.

        Raises:
            NotAllowedError: It is not offered.
        """
        name = self.default_model if name is None else name
        return name, self._models[_require("model", "models", self._models, name)]

    def base_url(self, given: str | None, entry: ModelEntry) -> str | None:
        """Return the configured address that equals the given one; None stays None.

        Raises:
            NotAllowedError: It is not configured. The message does not say which addresses are.
        """
        if given is None:
            return None
        for url in (entry.base_url, *self._settings.base_urls):
            if url is not None and _address(url) == _address(given):
                return url
        raise errors.NotAllowedError(
            "This base_url is not configured; leave it out, or ask whoever runs the service to add "
            "it to base_urls."
        )

    def attributors(self) -> list[str]:
        """Return the configured judges of answers."""
        return [*self._settings.attributors]

    def attributor(self, name: str | None) -> str:
        """Return the name of the judge of answers; None means the default.

        Raises:
            NotAllowedError: It is not offered.
            InputError: Its options are wrong.
        """
        if name is None:
            return next(iter(self._settings.attributors), NOTHING)
        if name == NOTHING:
            return name
        parsed = AttributorName.parse(name)
        offered = self._settings.attributors
        _require("attributor", "models", offered, name.partition("?")[0])
        if parsed.kind == "llm" and parsed.model:
            self.model(parsed.model)
        return name

    def prompts(self) -> list[tuple[str, str]]:
        """Return the ids and versions of the offered prompts."""
        allowed = self._settings.prompts or ("*",)
        return [pair for pair in self._prompts.names() if _named_by(allowed, "=".join(pair))]

    def check_prompts(self, versions: Mapping[str, str]) -> None:
        """Check the versions of prompts that a request names, by their ids.

        Raises:
            NotAllowedError: A version is not offered.
            PromptError: A version does not exist, or its file is wrong.
        """
        for id_, version in versions.items():
            if allowed := self._settings.prompts:
                _require("prompt", "prompts", allowed, f"{id_}={version}")
            self._prompts.get(id_, version)

    def answer_tokens(self, versions: Mapping[str, str]) -> int:
        """Return the most tokens of an answer, as the chosen version of its prompt says.

        Raises:
            PromptError: The file of the prompt is wrong.
        """
        return self._prompts.get(ANSWER, versions.get(ANSWER)).defaults.max_tokens

    def methods(self) -> list[Method]:
        """Return the offered methods; a request cannot name a file of weights."""
        own = [name for name in NEURAL if _named_by(self._models, name)]
        return [name for name in METHODS if name in own or name not in (*TRAINED, *NEURAL)]

    def check_steps(self, context: Context) -> None:
        """Check the ranker and the final step of a context.

        Raises:
            InputError: An option names a file of weights.
            NotAllowedError: A step, or the ranker's weights, is not offered.
        """
        strategy, weights = context.strategy, context.ranking.weights
        if strategy.final_step in TRAINED:
            raise errors.NotAllowedError(
                f"The final step '{strategy.final_step}' reads a file of weights, which a request "
                "cannot name; choose another step, or use the command."
            )
        if "weights" in context.options:
            raise errors.InputError(
                "A request cannot name a file of weights; leave it out of 'options'."
            )
        name = f"{strategy.ranker}:{weights}" if weights else strategy.ranker
        if name and (weights or name in NEURAL) and not _named_by(self._models, name):
            raise errors.NotAllowedError(
                f"The ranker '{one_line(name, 60)}' is not offered; choose another one, or ask "
                "whoever runs the service to add it to the models."
            )


def _sources(files: Iterable[Path], catalog: Catalog) -> dict[str, Source]:
    found: dict[str, Source] = {}
    for file in files:
        source = load_source(file)
        catalog.refuse_taken_by_others(source.name, file)
        if source.name in found:
            raise errors.ConfigError(
                f"Two sources of the service are named '{source.name}'; rename one."
            )
        found[source.name] = source
    return found


def _named_by(offered: Collection[str], name: str) -> str | None:
    """Return which of these names and patterns has a name, itself before any pattern.

    A name that is a pattern is in none, and one that could not be that of a model in no pattern.
    """
    if "*" not in name and name in offered:
        return name
    if not 0 < len(name) <= LONGEST_NAME or "*" in name or name != "".join(name.split()):
        return None
    return next((one for one in offered if fnmatchcase(name, one)), None)


def _require(kind: str, listed: str, offered: Collection[str], name: str) -> str:
    """Return which of these names and patterns has a name; see :func:`_named_by`.

    Raises:
        NotAllowedError: None of them has it.
    """
    if (found := _named_by(offered, name)) is None:
        shown = one_line(name, 60)
        raise errors.NotAllowedError(
            f"The {kind} '{shown}' is not offered; GET /v1/{listed} lists all that are."
        )
    return found


def _address(url: str) -> object:
    """Return the parts of an address, so that other spellings of it are equal."""
    if not url.isascii():  # digits of other scripts are numbers, too
        return url
    try:
        parsed = httpx.URL(url)
        host, path = parsed.host.removesuffix("."), parsed.raw_path.rstrip(b"/")
    except (httpx.InvalidURL, UnicodeError):  # the second for names like xn--a
        return url
    return parsed.scheme, parsed.userinfo, host, parsed.port, path, parsed.fragment
