"""What the service offers: which corpora, models, servers, prompts and judges may be named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from fairqr.agents.attribution.naming import AttributorName
from fairqr.agents.feedback import FeedbackRefiner
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
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.catalog import Catalog, check_name
from fairqr.retrieval.corpus import BUILT_IN
from fairqr.retrieval.source import Source, load_source

__all__ = ["NOTHING", "Offers"]

NOTHING = "none"
"""The name of the judge that judges nothing."""

NEURAL = ("monot5", "monobert")
"""Rankers that bring a model of their own; each is offered if it stands among the models."""

TRAINED = ("deltr", "dlf")
"""Final steps that read a file of weights. A request cannot name files, so they are not offered."""


LONGEST_NAME = 200
"""Characters of the name of a model that a pattern allows."""


class Offers:
    """What a request may name.

    Args:
        settings: Of the service.
        catalog: Of what can be searched.
        prompts: Where prompts come from.
        model: That of requests which name none; the configured one, if it is offered, or the first
            that is, where None.

    Attributes:
        sources: Those whose files the configuration lists, by name.

    Raises:
        SourceError: Such a file is wrong.
        ConfigError: Two have the same name.
        InputError: One has the name of a built-in corpus, or of an index.
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
        self._model = model
        self._models = settings.models or {
            default_model(): ModelEntry(),
            FeedbackRefiner.name: ModelEntry(),
        }
        self.sources = _sources(settings.sources, catalog)
        # What is listed as a source is offered; `corpora` is about the rest.
        self._corpora = settings.corpora and (*settings.corpora, *self.sources)

    def corpora(self) -> list[str]:
        """Return the names of what can be searched, the default one first."""
        known = [*dict.fromkeys((*self.sources, *BUILT_IN, *self._catalog.names()))]
        first: str | None = default_corpus()
        if self._corpora:
            known = [name for name in known if _is_among(name, self._corpora)]
            first = next((name for name in self._corpora if name in known), None)
        return sorted(known, key=lambda name: name != first)

    def corpus(self, name: str | None) -> str:
        """Return the name of what is searched.

        Raises:
            NotAllowedError: It is not offered.
            IndexNotFoundError: There is no index of this name.
        """
        if name is None:
            offered = self.corpora()
            if not offered:
                raise IndexNotFoundError("The service has no index yet; make one and name it.")
            return offered[0]
        try:
            check_name(name)  # what is no name could be a path
        except InputError:
            raise IndexNotFoundError(f"There is no index '{one_line(name, 60)}'.") from None
        if self._corpora and not _is_among(name, self._corpora):
            raise NotAllowedError(
                f"The index '{name}' is not offered; GET /v1/indexes lists those that are."
            )
        # The folders are looked into last: this is asked twice for each run.
        if not (name in BUILT_IN or name in self.sources or name in self._catalog.names()):
            raise IndexNotFoundError(
                f"There is no index '{name}'; GET /v1/indexes lists those that there are."
            )
        return name

    def link(self, corpus: str | None) -> str | None:
        """Return the field with the documents' web addresses, if the source names one."""
        name = self.corpus(corpus)
        source = self.sources.get(name)
        if source is None and name in self._catalog.sources():
            source, _ = self._catalog.source(name)
        return source.link if source else None

    @property
    def default_model(self) -> str:
        """The model where a request names none."""
        name = self._model or default_model()
        if self._entry(name):
            return name
        return next((name for name in self._models if not _is_glob(name)), name)

    def models(self) -> list[str]:
        """Return the names of all models, as they are configured, the default one first."""
        names = [name for name in self._models if name not in NEURAL]
        return sorted(names, key=lambda name: name != self.default_model)

    def model(self, name: str | None) -> tuple[str, ModelEntry]:
        """Return the name of a model, and what is configured of it.

        Raises:
            NotAllowedError: It is not offered.
        """
        name = self.default_model if name is None else name
        entry = self._entry(name)
        if entry is None:
            raise NotAllowedError(
                f"The model '{one_line(name, 60)}' is not offered; GET /v1/models lists those that "
                "are."
            )
        return name, entry

    def base_url(self, given: str | None, entry: ModelEntry) -> str | None:
        """Return the configured address that a request names, or None where it names none.

        Raises:
            NotAllowedError: It is not configured. What is configured is not told.
        """
        if given is None:
            return None
        address = _address(given)
        configured = [entry.base_url, *self._settings.base_urls]
        for url in configured:
            if url is not None and address is not None and _address(url) == address:
                return url
        raise NotAllowedError(
            "The base_url is none that the service is configured with; leave it out, or ask who "
            "runs the service to add it to base_urls."
        )

    def attributors(self) -> list[str]:
        """Return the names of what judges answers, as they are configured."""
        return [*self._settings.attributors]

    def attributor(self, name: str | None) -> str | None:
        """Return the name of what judges; None for nothing.

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
            raise NotAllowedError(
                f"The attributor '{one_line(name, 60)}' is not offered; GET /v1/models lists those "
                "that are."
            )
        if parsed.kind == "llm" and parsed.model:
            self.model(parsed.model)
        return name

    def prompts(self) -> list[tuple[str, str]]:
        """Return the ids and versions of prompts that a request may choose."""
        allowed = self._settings.prompts
        pairs = self._prompts.names()
        return [pair for pair in pairs if not allowed or _is_among("=".join(pair), allowed)]

    def check_prompts(self, versions: Iterable[tuple[str, str]]) -> None:
        """Check the versions of prompts that a request names.

        Raises:
            NotAllowedError: One is not offered.
            PromptError: There is none such, or its file is wrong.
        """
        for id_, version in versions:
            shown = one_line(f"{id_}={version}", 60)
            allowed = self._settings.prompts
            if allowed and not _is_among(f"{id_}={version}", allowed):
                raise NotAllowedError(
                    f"The prompt {shown} is not offered; GET /v1/prompts lists those that are."
                )
            if (id_, version) not in self._prompts.names():
                raise PromptError(
                    f"There is no prompt {shown}; GET /v1/prompts lists those that there are."
                )
            self._prompts.get(id_, version)

    def answer_tokens(self, versions: Mapping[str, str]) -> int:
        """Return how many tokens an answer may have, by its prompt.

        Args:
            versions: Of prompts, by id.

        Raises:
            PromptError: The file of the prompt is wrong.
        """
        return self._prompts.get(ANSWER, versions.get(ANSWER)).defaults.max_tokens

    def methods(self) -> list[Method]:
        """Return the methods that can be asked for."""
        refused = {*TRAINED, *(name for name in NEURAL if self._entry(name) is None)}
        return [name for name in METHODS if name not in refused]

    def check_steps(self, ranker: str | None, weights: str | None, final_step: FinalStep) -> None:
        """Check what ranks after the retrieval.

        Raises:
            NotAllowedError: It is not offered, or weights are named that are not.
        """
        if final_step in TRAINED:
            raise NotAllowedError(
                f"The final step '{final_step}' reads a file of weights, which a request cannot "
                "name; use it by the command, or choose another one."
            )
        name = f"{ranker}:{weights}" if weights else ranker
        if (ranker in NEURAL or weights) and (name is None or self._entry(name) is None):
            raise NotAllowedError(
                f"The ranker '{one_line(name, 60)}' is not offered; choose another one, or ask who "
                "runs the service to add it to its models."
            )

    def _entry(self, name: str) -> ModelEntry | None:
        """Return what is configured of a model; what is named exactly comes first."""
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


def _is_glob(name: str) -> bool:
    return "*" in name


def _is_among(name: str, patterns: Sequence[str]) -> bool:
    return not _is_glob(name) and any(fnmatchcase(name, pattern) for pattern in patterns)


def _address(url: str) -> tuple[str, str, int, str] | None:
    """Return what of a URL says where a server is; None where it says more, or nothing."""
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
