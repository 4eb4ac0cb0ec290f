"""How the service is set up: where it listens, what it offers, and how much of it.

Explicit arguments win over the variables ``FAIRQR_SERVICE_…``, the variables over the section
``[service]`` of the settings file, and the section over the defaults.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
)
from pydantic_settings import BaseSettings, InitSettingsSource, SettingsConfigDict

from fairqr.agents.attribution.opening import installed_attributors
from fairqr.base.errors import ConfigError, LimitError, first_problem, one_line
from fairqr.base.request_members import RequestMembers
from fairqr.base.settings import (
    DEFAULT_TIMEOUT,
    REASONING_TOKENS,
    SERVICE,
    ValueSource,
    beside,
    data_dir,
    file_section,
    is_web_address,
    variable_of,
)

_LIMIT = r"\s*[1-9][0-9]*\s*(/|per)\s*([1-9][0-9]*)?\s*(second|minute|hour|day|month|year)s?\s*"
_RATE = re.compile(f"({_LIMIT}(;{_LIMIT})*)?", re.IGNORECASE)


def _written(is_right: Callable[[str], object], form: str) -> AfterValidator:
    """Return a validator that says how to write a text, without the text, which may be secret."""

    def check(text: str) -> str:
        if not is_right(text):
            raise ValueError(f"write {form}")
        return text

    return AfterValidator(check)


def _split(value: Any) -> Any:
    """Split a text at its commas, as variables write lists."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


_PATHS = ("sources", "replies", "traces", "audits")
"""Settings that are paths, or lists of them."""


def _values_of_file() -> tuple[dict[str, Any], Path]:
    """Return the values in the settings file, with paths relative to its folder; and its path."""
    section, file = file_section(SERVICE)
    values = dict(section)
    if "sources" in values:
        values["sources"] = _split(values["sources"])
    models = values.get("models")
    if isinstance(models, str):
        values["models"] = {name: {} for name in _split(models)}
    for name in _PATHS:
        if name in values:
            values[name] = _relative_to(file, values[name])
    return values, file


def _relative_to(file: Path, value: Any) -> Any:
    """Return a path, or a list of paths, relative to the folder of a file."""
    if isinstance(value, list):
        return [_relative_to(file, path) for path in value]
    if not isinstance(value, str):
        return value
    return str(beside(file, value))


def _entries_of_models(value: Any) -> Any:
    """Return the models that a variable names, with their entries in the settings file."""
    if not isinstance(value, str):
        return value
    values, _ = _values_of_file()
    entries = values.get("models")
    if not isinstance(entries, Mapping):
        entries = {}
    return {name: entries.get(name, {}) for name in _split(value)}


FIRST_PARTS = (
    "healthz",
    "mcp",
    "metrics",
    "openai",
    "openapi.json",
    "page",
    "readyz",
    "rerank",
    "v1",
    "v2",
)
"""The first parts of the service's paths, which a root path would hide."""


def _is_root_path(text: str) -> bool:
    """Return whether a text is empty, or a path below which we can be served.

    Such a path has no slash at its end, and hides no path of ours. It has no dots, since clients
    resolve them, so that no request would ever have them.
    """
    if not text:
        return True
    is_path = re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", text) is not None
    parts = text.split("/")[1:]
    has_dots = "." in parts or ".." in parts
    return is_path and not has_dots and parts[0] not in FIRST_PARTS


_ORIGIN = re.compile(r"(https?)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]+))?")
_USUAL_PORTS = {"http": "80", "https": "443"}


def _as_sent(text: str) -> str:
    """Return an origin as browsers send it: in small letters, and without the usual port."""
    if text == "*":
        return text
    match = _ORIGIN.fullmatch(text.lower())
    if match is None or not is_web_address(text):
        raise ValueError("write * or an origin, such as https://search.example")
    scheme, host, port = match.groups()
    if port in (None, _USUAL_PORTS[scheme]):
        return f"{scheme}://{host}"
    return text.lower()


_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Address = Annotated[str, _written(is_web_address, "it like http://127.0.0.1:8000/v1")]
_Variable = Annotated[str, _written(os.environ.get, "the name of a variable that is set")]
_as_rate = _written(_RATE.fullmatch, "a number and a time, such as 600/minute")
_Rate = Annotated[str, AfterValidator(str.strip), _as_rate]
_as_root_path = _written(_is_root_path, "a path such as /fair, and none of our own, as /v1 is")
_Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
_Origin = Annotated[str, AfterValidator(_as_sent)]
_Origins = Annotated[tuple[_Origin, ...], BeforeValidator(_split)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ModelEntry(_Section):
    """A model that requests may name."""

    base_url: _Address | None = Field(
        None, description="The server that has the model; defaults to the provider's."
    )
    api_key: SecretStr | None = Field(None, description="The key for that server.")
    api_key_env: _Variable | None = Field(
        None, description="The variable that holds the key for that server; wins over api_key."
    )
    timeout: _Seconds = Field(
        DEFAULT_TIMEOUT, description="The most seconds that one request to the model may take."
    )
    reasoning_tokens: int = Field(
        REASONING_TOKENS,
        ge=0,
        description="How many tokens a model that thinks before it answers may use for that.",
    )
    extra_body: RequestMembers = Field(
        {}, description="More parameters for each request to the model."
    )

    @property
    def key(self) -> SecretStr | None:
        """The key for that server, without the line break that mounted secrets end in."""
        if self.api_key_env:
            return SecretStr(os.environ[self.api_key_env].strip())
        if self.api_key is None:
            return None
        return SecretStr(self.api_key.get_secret_value().strip())


class ServiceLimits(_Section):
    """The most that one request may ask for."""

    k: _Count = Field(100, description="The most documents that a search may show.")
    depth: _Count = Field(1000, description="The most documents that one query may retrieve.")
    max_iterations: Annotated[int, Field(ge=0)] = Field(
        10, description="The most rounds of refinement."
    )
    samples: _Count = Field(100, description="The most rankings that an answer may sample.")
    documents: _Count = Field(
        20, description="The most documents that a generator may read for one answer."
    )
    pairs: _Count = Field(100, description="The most pairs that a probe may compare.")
    probe_documents: _Count = Field(100, description="The most documents that a probe may use.")
    audit_queries: _Count = Field(500, description="The most queries that an audit may ask.")
    audit_seconds: _Seconds = Field(3600.0, description="The most seconds that an audit may take.")
    model_calls: _Count = Field(500, description="The most calls of language models in one run.")
    tokens: _Count = Field(1_000_000, description="The most tokens of language models in one run.")
    seconds: _Seconds = Field(300.0, description="The most seconds that a run may take.")
    query_characters: _Count = Field(
        2000, description="The longest query or question, in characters."
    )
    body_bytes: _Count = Field(1_000_000, description="The largest request body, in bytes.")
    bundle_bytes: _Count = Field(
        500_000_000,
        description="The most bytes of an audit's files that are packed into one `bundle.zip`.",
    )

    def check(self, limit: str, value: float | None, subject: str) -> None:
        """Check a value of a request.

        Args:
            limit: The name of the limit.
            value: None is always within the limit.
            subject: What the value is, for the message.

        Raises:
            LimitError: The value exceeds its limit.
        """
        most = getattr(self, limit)
        if value is not None and value > most:
            allowed = f"this service allows at most {most:,} ({limit})"
            raise LimitError(limit, most, f"{subject} is {value:,}, and {allowed}; ask for less.")


class Traffic(_Section):
    """How much may be asked at once, and how fast."""

    rate: _Rate = Field(
        "600/minute",
        description=(
            "The most requests per key, such as 600/minute; separate several limits by semicolons. "
            "Empty for no limit."
        ),
    )
    live: _Count = Field(
        32,
        description=(
            "The most runs per key that wait or are under way. Durable runs are counted together; "
            "other runs are counted in each process. A key has at most twice as many POST requests "
            "under way in a process, and calls a tool only if it has fewer than this."
        ),
    )
    queue: _Count = Field(
        200, description="The most runs that wait, over all keys; counted the same way."
    )
    wait: _Seconds = Field(
        30.0, description="The most seconds that a run without a record waits to begin."
    )
    body_seconds: _Seconds = Field(
        20.0, description="The most seconds until the whole body of a request has arrived."
    )
    requests: _Count = Field(
        1000,
        description=(
            "The most requests under way at once, without those whose body has not arrived."
        ),
    )
    arriving: _Count = Field(
        100,
        description=(
            "The most bodies under way at once of one key, or from one address; and the most "
            "requests to paths that need no key."
        ),
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.75,
        description=(
            "The largest part of the runs under way (`concurrency`) and of `requests` that one key "
            "may have, so that others find room."
        ),
    )


class ServiceSettings(_Section, BaseSettings):
    """How the service is set up.

    In the lists of names, `*` stands for any characters.
    """

    model_config = SettingsConfigDict(
        env_prefix=f"{variable_of(SERVICE)}_",
        env_nested_delimiter="_",
        env_nested_max_split=1,
        enable_decoding=False,  # lists are written with commas
    )

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="The address to listen on. Any other than loopback requires access keys.",
    )
    port: int = Field(
        8080, ge=0, le=65_535, description="The port to listen on; 0 takes a free one."
    )
    root_path: Annotated[str, _as_root_path] = Field(
        "",
        description=(
            "The path below which a proxy offers the service, such as /fair; by default none."
        ),
    )
    database: str = Field(
        "",
        repr=False,
        description=(
            "The database of runs: sqlite:///… or postgresql://…; defaults to the file "
            "service/runs.sqlite in the data folder."
        ),
    )
    corpora: _Names = Field(
        (),
        description=(
            "The sources, indexes and built-in corpora that clients may search; all by default."
        ),
    )
    sources: Annotated[tuple[Path, ...], BeforeValidator(_split)] = Field(
        (), description="Source files that clients may search too, by the names in them."
    )
    models: Annotated[dict[str, ModelEntry], BeforeValidator(_entries_of_models)] = Field(
        {},
        description=(
            "The models that requests may name; defaults to the configured model and feedback."
        ),
    )
    attributors: _Names = Field(
        default_factory=installed_attributors,
        description=(
            "The attributors that requests may choose, the default first; by default overlap, "
            "after transformers where the paper's model is installed."
        ),
    )
    limits: ServiceLimits = Field(
        ServiceLimits(), description="What one request may ask for at most."
    )
    traffic: Traffic = Field(
        Traffic(), description="How many requests are taken at once, and how fast."
    )
    require_keys: bool = Field(False, description="Require access keys on loopback too.")
    cors_origins: _Origins = Field(
        (), description="Web pages whose scripts may read the answers; defaults to none."
    )
    concurrency: _Count = Field(
        8, description="How many runs this process works on at once, without audits."
    )
    audit_concurrency: _Count = Field(
        1, description="How many audits this process works on at once."
    )
    grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        20.0,
        description="Seconds that running work gets to finish after the service is told to stop.",
    )
    lease: Annotated[float, Field(ge=1, le=86_400)] = Field(
        15.0, description="Seconds of silence after which a worker loses its runs to another."
    )
    work: bool = Field(
        True,
        description="Whether `fairqr serve` also does durable runs; if not, `fairqr work` does.",
    )
    retention: _Seconds = Field(7 * 86_400.0, description="Seconds that finished runs are kept.")
    kept: int = Field(
        10_000,
        ge=1,
        lt=2**31,
        description="How many finished runs of one key are kept; the oldest go first.",
    )
    replies: Path | None = Field(
        None,
        description=(
            "A file that keeps the replies of models; by default they are kept in memory only."
        ),
    )
    traces: Path | None = Field(None, description="Record each run in this folder, as JSON lines.")
    log: Literal["text", "json"] = Field(
        "text", description="Whether lines of the log are text, or JSON objects."
    )
    audits: Path = Field(
        default_factory=lambda: data_dir() / "service" / "audits",
        description="The folder of audits; defaults to service/audits in the data folder.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: Any,
        env_settings: Any,
        *_: Any,
        **__: Any,
    ) -> tuple[Any, ...]:
        """Return the sources of values, the strongest first.

        A misspelt limit is an error; any other unknown variable has no effect.
        """
        variables = service_variables()
        sections = tuple(f"{variable_of(f'{SERVICE}.{name}')}_" for name in ("limits", "traffic"))
        env_vars = {}
        for name, text in os.environ.items():
            is_ours = name in variables or name.startswith(sections)
            if text and is_ours:
                env_vars[name.lower()] = text
        env_settings.env_vars = env_vars

        values, _file = _values_of_file()
        explicit = init_settings.init_kwargs.get("models")
        entries = values.get("models")
        if isinstance(explicit, Mapping) and isinstance(entries, Mapping):
            # Whole entries: the key that the file has for one server must not go to another one.
            # Each keeps its place, since the first one may be the default.
            values["models"] = {name: explicit.get(name, entries[name]) for name in entries}
        return init_settings, env_settings, InitSettingsSource(settings_cls, values)


def service_settings(**options: Any) -> ServiceSettings:
    """Return how the service is set up.

    Args:
        options: Explicit values of :class:`ServiceSettings`; None counts as left out. A section may
            be given in part, as a mapping.

    Raises:
        ConfigError: A value is wrong; the sentence says where it is from.
    """
    explicit = {name: value for name, value in options.items() if value is not None}
    try:
        return ServiceSettings(**explicit)
    except ValidationError as error:
        name, reason = first_problem(error)
        if error.errors()[0]["type"] == "extra_forbidden":
            reason = "there is no such setting"
        source = source_of(name, explicit)
        origin = ""
        if source.kind == "file":
            origin = f"In the settings file {source.place}, "
        elif source.kind == "variable":
            origin = f"{source.place}: "
        raise ConfigError(
            f"{origin}{SERVICE}.{one_line(name, 120)} is wrong: {one_line(reason)}; correct it."
        ) from None


def source_of(name: str, explicit: Mapping[str, Any]) -> ValueSource:
    """Return where the value of a setting, or of something in it, is from.

    Args:
        name: The setting, with dots.
        explicit: The explicit values.
    """
    values, file = _values_of_file()
    if _sets(explicit, name):
        return ValueSource("argument")

    is_in_file = _sets(values, name)
    section, _, key = name.partition(".")
    # A variable only names models: the entry of a model is from the file.
    is_of_model = section == "models" and key != ""
    if not (is_of_model and is_in_file):
        for setting in (name, section):
            variable = variable_of(f"{SERVICE}.{setting}")
            if os.environ.get(variable):
                return ValueSource("variable", variable)
    return ValueSource("file", str(file)) if is_in_file else ValueSource()


def _sets(values: Mapping[str, Any], name: str) -> bool:
    """Return whether values set a setting, or what it is a part of; its name has dots."""
    section, _, inner_name = name.partition(".")
    value = values.get(section)
    if value is None:
        return False
    if not (inner_name and isinstance(value, Mapping)):
        return True
    return any(f"{inner_name}.".startswith(f"{key}.") for key in value)


def setting_names() -> Iterator[str]:
    """Yield the name of each setting, with dots where it is in a section."""
    for name, field in ServiceSettings.model_fields.items():
        section = getattr(field.annotation, "model_fields", None)
        if not section:
            yield name
            continue
        for key in section:
            yield f"{name}.{key}"


def service_variables() -> list[str]:
    """Return the names of the variables that set up the service."""
    return [variable_of(f"{SERVICE}.{name}") for name in setting_names()]
