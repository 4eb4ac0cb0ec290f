"""What the service offers: the corpora, models, servers, prompts and judges to choose from."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from fairqr.agents.attribution.attributor import AttributorName
from fairqr.agents.refiner import FeedbackRefiner
from fairqr.base.errors import (
    ConfigError,
    IndexNotFoundError,
    InputError,
    NotAllowedError,
    PromptError,
    one_line,
)
from fairqr.base.settings import default_corpus, default_model
from fairqr.graph.answer.nodes import PROMPT as ANSWER
from fairqr.graph.search.context import METHODS, FinalStep, Method
from fairqr.graph.service.configuration import ModelEntry, ServiceSettings
from fairqr.prompts.library import DEFAULT_VERSIONS, PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.rerankers.registry import TRAINED
from fairqr.retrieval.sources.catalog import Catalog, check_name
from fairqr.retrieval.sources.corpus import BUILT_IN
from fairqr.retrieval.sources.source import Source, load_source

log = logging.getLogger(__name__)

NOTHING = "none"
"""The name to give if nothing should judge answers."""

NEURAL = ("monot5", "monobert")
"""Rankers with a model of their own; the service offers those that its models list."""

LONGEST_NAME = 200
"""The most characters of a model's name that matches a pattern."""


class ServedPrompts(PromptLibrary):
    """Prompts, of whose wrong files only the log says where they are and what is wrong."""

    def get(self, id_: str, version: str | None = None) -> PromptTemplate:
        """Return a prompt; see :meth:`PromptLibrary.get`.

        Raises:
            PromptError: It does not exist, or its file is wrong.
        """
        try:
            return super().get(id_, version)
        except PromptError as error:
            if (id_, version or DEFAULT_VERSIONS.get(id_, "v1")) not in self.names():
                raise
            log.warning("%s", error)
            shown = one_line(f"{id_}/{version}" if version else id_, 60)
            raise PromptError(
                f"The file of the prompt {shown} is wrong; ask whoever runs the service to mend it."
            ) from None


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
            known = [name for name in known if _is_among(name, self._corpora)]
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
                raise IndexNotFoundError(
                    "The service has no index yet; create one with 'fairqr index create'."
                )
            return usual
        try:
            check_name(name)  # anything else could be a path
        except InputError:
            raise IndexNotFoundError(f"There is no index '{one_line(name, 60)}'.") from None
        if self._corpora and not _is_among(name, self._corpora):
            raise _not_offered("index", f"'{name}'", "indexes")
        # Last, since it reads folders and happens twice in each run.
        if not self._is_known(name):
            raise IndexNotFoundError(f"There is no index '{name}'; GET /v1/indexes lists all.")
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
        if self._entry(self._model):
            return self._model
        return next((name for name in self._models if not _is_glob(name)), self._model)

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
        entry = self._entry(name)
        if entry is None:
            raise _not_offered("model", f"'{one_line(name, 60)}'", "models")
        return name, entry

    def base_url(self, given: str | None, entry: ModelEntry) -> str | None:
        """Return the configured address that equals the given one; None stays None.

        Raises:
            NotAllowedError: It is not configured. The message does not say which addresses are.
        """
        if given is None:
            return None
        address = _address(given)
        configured = [entry.base_url, *self._settings.base_urls]
        for url in configured:
            if url is not None and address is not None and _address(url) == address:
                return url
        raise NotAllowedError(
            "This base_url is not configured; leave it out, or ask whoever runs the service to add "
            "it to base_urls."
        )

    def attributors(self) -> list[str]:
        """Return the configured judges of answers."""
        return [*self._settings.attributors]

    def attributor(self, name: str | None) -> str | None:
        """Return the name of the judge of answers, or None if nothing should judge them.

        Raises:
            NotAllowedError: It is not offered.
            InputError: Its options are wrong.
        """
        if name is None:
            return next(iter(self._settings.attributors), None)
        if name == NOTHING:
            return None
        parsed = AttributorName.parse(name)
        if not _is_among(name.partition("?")[0], self._settings.attributors):
            raise _not_offered("attributor", f"'{one_line(name, 60)}'", "models")
        if parsed.kind == "llm" and parsed.model:
            self.model(parsed.model)
        return name

    def prompts(self) -> list[tuple[str, str]]:
        """Return the ids and versions of the offered prompts."""
        allowed = self._settings.prompts
        pairs = self._prompts.names()
        return [pair for pair in pairs if not allowed or _is_among("=".join(pair), allowed)]

    def check_prompts(self, versions: Iterable[tuple[str, str]]) -> None:
        """Check the versions of prompts that a request names.

        Raises:
            NotAllowedError: A version is not offered.
            PromptError: A version does not exist, or its file is wrong.
        """
        for id_, version in versions:
            shown = one_line(f"{id_}={version}", 60)
            allowed = self._settings.prompts
            if allowed and not _is_among(f"{id_}={version}", allowed):
                raise _not_offered("prompt", shown, "prompts")
            if (id_, version) not in self._prompts.names():
                raise PromptError(f"There is no prompt {shown}; GET /v1/prompts lists all.")
            self._prompts.get(id_, version)

    def answer_tokens(self, versions: Mapping[str, str]) -> int:
        """Return the most tokens of an answer, as its prompt says.

        Args:
            versions: The chosen versions of prompts, by id.

        Raises:
            PromptError: The file of the prompt is wrong.
        """
        return self._prompts.get(ANSWER, versions.get(ANSWER)).defaults.max_tokens

    def methods(self) -> list[Method]:
        """Return the offered methods; a request cannot name a file of weights."""
        refused = {*TRAINED, *(name for name in NEURAL if self._entry(name) is None)}
        return [name for name in METHODS if name not in refused]

    def check_steps(self, ranker: str | None, weights: str | None, final_step: FinalStep) -> None:
        """Check the ranker and the final step.

        Raises:
            NotAllowedError: One of them, or the ranker's weights, is not offered.
        """
        if final_step in TRAINED:
            raise NotAllowedError(
                f"The final step '{final_step}' reads a file of weights, which a request cannot "
                "name; choose another step, or use the command."
            )
        name = f"{ranker}:{weights}" if weights else ranker
        if (ranker in NEURAL or weights) and (name is None or self._entry(name) is None):
            raise NotAllowedError(
                f"The ranker '{one_line(name, 60)}' is not offered; choose another one, or ask "
                "whoever runs the service to add it to the models."
            )

    def _entry(self, name: str) -> ModelEntry | None:
        """Return the configuration of a model; an exact name wins over a pattern."""
        if name in self._models and not _is_glob(name):
            return self._models[name]
        if not 0 < len(name) <= LONGEST_NAME or name != "".join(name.split()) or _is_glob(name):
            return None
        matching = (entry for pattern, entry in self._models.items() if fnmatchcase(name, pattern))
        return next(matching, None)


def _sources(files: Iterable[Path], catalog: Catalog) -> dict[str, Source]:
    found: dict[str, Source] = {}
    for file in files:
        source = load_source(file)
        catalog.refuse_taken_by_others(source.name, file)
        if source.name in found:
            raise ConfigError(f"Two sources of the service are named '{source.name}'; rename one.")
        found[source.name] = source
    return found


def _not_offered(kind: str, name: str, listed: str) -> NotAllowedError:
    return NotAllowedError(
        f"The {kind} {name} is not offered; GET /v1/{listed} lists all that are."
    )


def _is_glob(name: str) -> bool:
    return "*" in name


def _is_among(name: str, patterns: Sequence[str]) -> bool:
    return not _is_glob(name) and any(fnmatchcase(name, pattern) for pattern in patterns)


def _address(url: str) -> tuple[str, str, int, str] | None:
    """Return scheme, host, port and path of a URL; None if it has more parts or is no address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    default = {"http": 80, "https": 443}.get(parts.scheme)
    if default is None or not parts.hostname or "@" in parts.netloc or parts.query:
        return None
    if parts.fragment or "\\" in url or any(each.isspace() for each in url):
        return None
    path = parts.path.rstrip("/")
    return parts.scheme, parts.hostname.rstrip("."), default if port is None else port, path
