"""What the service offers: corpora, models, attributors, methods and steps."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from fairqr.agents.attribution.attributor import AttributorName
from fairqr.agents.attribution.opening import ATTRIBUTORS
from fairqr.agents.models.opening import require_model
from fairqr.agents.models.recorded import SHIPPED_NAMES
from fairqr.agents.models.replies import RECORDED
from fairqr.agents.refiners.feedback import FeedbackRefiner
from fairqr.base import errors
from fairqr.base.settings import default_corpus, default_model
from fairqr.graph.search.context import METHODS, Context, Method
from fairqr.graph.service.configuration import ModelEntry, ServiceSettings
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.rerankers.registry import TRAINED
from fairqr.retrieval.sources.catalog import NAME, Catalog
from fairqr.retrieval.sources.corpus import BUILT_IN
from fairqr.retrieval.sources.source import Source, load_source

NOTHING = "none"
"""The name to give if nothing should judge answers."""

NEURAL = ("monot5", "monobert")
"""Rankers with a model of their own; the service offers those that its models list."""

LONGEST_NAME = 200
"""The most characters of a name that matches a pattern."""


class Capabilities:
    """What a request may name.

    Args:
        settings: The settings of the service.
        catalog: What can be searched.
        model: The model for requests that name none. Defaults to the configured model if it is
            offered, and otherwise to the first offered model.

    Attributes:
        sources: The sources whose files the configuration lists, by name.
        default_model: The model for requests that name none.
        prompts: The prompts.

    Raises:
        SourceError: The file of a source is wrong.
        ConfigError: Two sources have the same name, or there is no such attributor, or its model
            is not offered.
        InputError: A source has the name of a built-in corpus or an index.
    """

    def __init__(
        self, settings: ServiceSettings, catalog: Catalog, model: str | None = None
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self.prompts = PromptLibrary()

        usual_models = (default_model(), FeedbackRefiner.name)
        self._models = settings.models or {name: ModelEntry() for name in usual_models}
        self.default_model = self._choose_default_model(model or default_model())

        self.sources = self._load_sources()
        for attributor in settings.attributors:
            _require_attributor(attributor, self._models)
        for name in settings.models:
            _require_model(name)

        # Every listed source is offered; `corpora` limits the rest.
        self._corpora = settings.corpora and (*settings.corpora, *self.sources)
        self._first_corpora = self._corpora or (default_corpus(),)

    def _choose_default_model(self, preferred: str) -> str:
        """Return the preferred model if it is offered, and otherwise the first that is named."""
        exact_names = [name for name in self._models if "*" not in name]
        if not exact_names or _matching_entry(self._models, preferred):
            return preferred
        return exact_names[0]

    def _load_sources(self) -> dict[str, Source]:
        """Return the sources of the configured files, by name."""
        sources: dict[str, Source] = {}
        for file in self._settings.sources:
            source = load_source(file)
            self._catalog.refuse_taken_by_others(source.name, file)
            if source.name in sources:
                raise errors.ConfigError(
                    f"Two sources of the service are named '{source.name}'; rename one."
                )
            sources[source.name] = source
        return sources

    def corpora(self) -> list[str]:
        """Return the names of all offered corpora, the default first."""
        names = [*dict.fromkeys((*self.sources, *BUILT_IN, *self._catalog.names()))]
        if self._corpora:
            names = [name for name in names if _matching_entry(self._corpora, name)]
        default = next((name for name in self._first_corpora if name in names), None)
        return sorted(names, key=lambda name: name != default)

    def corpus(self, name: str | None) -> str:
        """Return the name of the corpus to search; None means the default.

        Raises:
            NotAllowedError: It is not offered.
            IndexNotFoundError: It does not exist.
        """
        if name is None:
            return self._default_corpus()

        is_name = NAME.fullmatch(name) is not None  # anything else could be a path
        if self._corpora and is_name:
            _require("index", "indexes", self._corpora, name)

        # Last, since it reads folders and happens twice in each run.
        if not is_name or not self._exists(name):
            raise errors.IndexNotFoundError(
                f"There is no index '{errors.one_line(name, 60)}'; GET /v1/indexes lists all."
            )
        return name

    def _default_corpus(self) -> str:
        # Without reading folders, if possible: this happens in each request.
        for name in self._first_corpora:
            if self._exists(name):
                return name

        offered = self.corpora()
        if not offered:
            raise errors.IndexNotFoundError(
                "The service has no index yet; create one with 'fairqr index create'."
            )
        return offered[0]

    def _exists(self, name: str) -> bool:
        if name in BUILT_IN or name in self.sources:
            return True
        return name in self._catalog.names()

    def link(self, corpus: str | None) -> str | None:
        """Return the field with the documents' web addresses, if the source names one."""
        name = self.corpus(corpus)
        source = self.sources.get(name)
        if source is None and name in self._catalog.sources():
            source, _ = self._catalog.source(name)
        if source is None:
            return None
        return source.link

    def models(self) -> list[str]:
        """Return the configured names and patterns of models, the default first."""
        names = [name for name in self._models if name not in NEURAL]
        return sorted(names, key=lambda name: name != self.default_model)

    @property
    def default_model_writes(self) -> bool:
        """Whether the default model writes answers; some only refine queries."""
        only_refine = (FeedbackRefiner.name, RECORDED)
        return self.default_model.partition(":")[0] not in only_refine

    def model(self, name: str | None) -> tuple[str, ModelEntry]:
        """Return the name and the configuration of a model; None means the default.

        Raises:
            NotAllowedError: It is not offered.
        """
        if name is None:
            name = self.default_model
        entry = _require("model", "models", self._models, name)
        is_matched_by_pattern = "*" in entry
        if is_matched_by_pattern and _names_file_of_replies(name):
            raise errors.NotAllowedError(
                f"The model '{errors.one_line(name, 60)}' is not offered; the service lists files "
                "of replies by their whole names."
            )
        return name, self._models[entry]

    def attributor(self, name: str | None) -> str:
        """Return the name of the judge of answers; None means the default, the first that is named.

        Raises:
            NotAllowedError: It is not offered.
            InputError: Its options are wrong.
        """
        offered = self._settings.attributors
        if name is None:
            exact_names = (entry for entry in offered if "*" not in entry)
            return next(exact_names, NOTHING)
        if name == NOTHING:
            return name

        parsed = AttributorName.parse(name)
        name_without_options = name.partition("?")[0]
        _require("attributor", "models", offered, name_without_options)
        if parsed.kind == "llm" and parsed.model:
            self.model(parsed.model)
        return name

    def methods(self) -> list[Method]:
        """Return the offered methods; a request cannot name a file of weights."""
        names: list[Method] = []
        for name in METHODS:
            if name in NEURAL:
                is_offered = _matching_entry(self._models, name) is not None
            else:
                is_offered = name not in TRAINED
            if is_offered:
                names.append(name)
        return names

    def check_steps(self, context: Context) -> None:
        """Check the prompts, the ranker and the final step of a context.

        Raises:
            PromptError: A version does not exist, or its file is wrong.
            InputError: An option names a file of weights.
            NotAllowedError: A step, or the ranker's weights, is not offered.
        """
        for prompt_id, version in context.prompts.items():
            self.prompts.get(prompt_id, version)

        strategy = context.strategy
        if strategy.final_step in TRAINED:
            raise errors.NotAllowedError(
                f"The final step '{strategy.final_step}' reads a file of weights, which a request "
                "cannot name; choose another step, or use the command."
            )
        if "weights" in context.options:
            raise errors.InputError(
                "A request cannot name a file of weights; leave it out of 'options'."
            )

        weights = context.ranking.weights
        if weights:
            _require("ranker", "models", self._models, f"{strategy.ranker}:{weights}")
        elif strategy.ranker in NEURAL:
            _require("ranker", "models", self._models, strategy.ranker)


def _matching_entry(offered: Collection[str], name: str) -> str | None:
    """Return which of the offered names and patterns matches a name; the name itself comes first.

    A name that is a pattern matches none. A name that no model could have matches no pattern.
    """
    is_pattern = "*" in name
    if not is_pattern and name in offered:
        return name

    has_spaces = name != "".join(name.split())
    has_usual_length = 0 < len(name) <= LONGEST_NAME
    if is_pattern or has_spaces or not has_usual_length:
        return None
    for pattern in offered:
        if fnmatchcase(name, pattern):
            return pattern
    return None


def _require(kind: str, listed_as: str, offered: Collection[str], name: str) -> str:
    """Return which of the offered names and patterns matches a name; see :func:`_matching_entry`.

    Args:
        kind: What the name is of, for the message.
        listed_as: The last part of the path that lists what is offered.
        offered: The names and patterns.
        name: The name.

    Raises:
        NotAllowedError: None of them matches.
    """
    entry = _matching_entry(offered, name)
    if entry is None:
        short_name = errors.one_line(name, 60)
        raise errors.NotAllowedError(
            f"The {kind} '{short_name}' is not offered; GET /v1/{listed_as} lists all."
        )
    return entry


def _names_file_of_replies(model: str) -> bool:
    """Return whether a model is a file on this machine; the files that ship do not count."""
    prefix, _, file = model.partition(":")
    return prefix == RECORDED and file not in SHIPPED_NAMES


def _require_model(name: str) -> None:
    """Check the name of a model in the configuration, unless it has a ``*`` or is of weights.

    Raises:
        ConfigError: There is no such model.
    """
    is_of_weights = name.partition(":")[0] in METHODS
    if "*" in name or is_of_weights:
        return
    try:
        require_model(name)
    except errors.ModelUnavailableError as error:
        raise errors.ConfigError(f"service.models: {error}") from None


def _require_attributor(name: str, models: Collection[str]) -> None:
    """Check the name of an attributor, which may have a ``*``, in the configuration.

    Args:
        name: The name.
        models: The names and patterns of the models that are offered.

    Raises:
        ConfigError: There is no such attributor, or its model is not offered.
    """
    parts = AttributorName.parse(name)
    short_name = errors.one_line(name, 60)

    model = ""
    if parts.kind == "llm" and parts.model:
        model = parts.model
    names_one_model = model != "" and "*" not in model
    if names_one_model and not _matching_entry(models, model):
        raise errors.ConfigError(
            f"service.attributors names '{short_name}', and its model is not "
            "offered; add it to service.models."
        )

    kinds = [form.partition("[")[0] for form in ATTRIBUTORS]
    if not any(fnmatchcase(kind, parts.kind) for kind in kinds):
        raise errors.ConfigError(
            f"service.attributors names '{short_name}', and there is no such "
            f"attributor; choose from {', '.join(kinds)}."
        )
