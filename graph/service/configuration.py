"""How the service is set up: where it listens, what it offers, and how much of it.

Explicit arguments win over the variables ``FAIRQR_SERVICE_…``, these over the section ``[service]``
of the settings file, and that over the defaults.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field, SecretStr, ValidationError, field_validator

from fairqr.base.errors import ConfigError, first_problem, one_line
from fairqr.base.settings import SERVICE, ValueSource, data_dir, is_web_address, variable_of
from fairqr.graph.documented import Documented
from fairqr.graph.service.sources import (
    Sources,
    lay_over,
    names_of,
    of_file,
    of_variables,
    read_keys,
    source_of,
)

_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Section(Documented):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ModelEntry(_Section):
    """A model that requests may name.

    Attributes:
        base_url: The server that has the model; defaults to the provider's.
        api_key: The key for that server. A settings file may name a variable as api_key_env.
        timeout: The most seconds that one request to the model may take.
    """

    base_url: str | None = None
    api_key: SecretStr | None = None
    timeout: _Seconds = 60.0

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        return None if value is None else _web_address(value)


class Caps(_Section):
    """The most that one request may ask for.

    Attributes:
        k: The most documents that a search may show.
        depth: The most documents that one query may retrieve.
        max_iterations: The most rounds of refinement.
        samples: The most rankings that an answer may sample.
        documents: The most documents that a generator may read for one answer.
        pairs: The most pairs that a probe may compare.
        probe_documents: The most documents that a probe may use.
        audit_queries: The most queries that an audit may ask.
        audit_seconds: The most seconds that an audit may take.
        model_calls: The most calls of language models in one run.
        tokens: The most tokens of language models in one run.
        seconds: The most seconds that a run may take.
        query_characters: The longest query or question, in characters.
        body_bytes: The largest request body, in bytes.
    """

    k: _Count = 100
    depth: _Count = 1000
    max_iterations: Annotated[int, Field(ge=0)] = 10
    samples: _Count = 100
    documents: _Count = 20
    pairs: _Count = 100
    probe_documents: _Count = 100
    audit_queries: _Count = 500
    audit_seconds: _Seconds = 3600.0
    model_calls: _Count = 500
    tokens: _Count = 1_000_000
    seconds: _Seconds = 300.0
    query_characters: _Count = 2000
    body_bytes: _Count = 1_000_000


class Limits(_Section):
    """How much may be asked at once, and how fast.

    Attributes:
        rate: The most requests per key, such as 600/minute; separate several limits by semicolons.
            Empty for no limit.
        live: The most runs per key that wait or are under way. Durable runs are counted together;
            other runs are counted in each process.
        queue: The most runs that wait, over all keys; counted the same way.
        wait: The most seconds that a run without a record waits to begin.
        body_seconds: The most seconds until the whole body of a request has arrived.
        requests: The most requests under way at once.
    """

    rate: str = "600/minute"
    live: _Count = 32
    queue: _Count = 200
    wait: _Seconds = 30.0
    body_seconds: _Seconds = 20.0
    requests: _Count = 1000

    @field_validator("rate")
    @classmethod
    def _is_a_rate(cls, value: str) -> str:
        if not value.strip():
            return ""
        try:
            from limits import parse_many
        except ImportError:  # without the extra `service` nothing is served
            return value
        try:
            rates = parse_many(value)
        except ValueError:
            rates = []
        if not rates or any(rate.amount < 1 or rate.multiples < 1 for rate in rates):
            raise ValueError("write a number and a time, such as 600/minute")
        return value


class ServiceSettings(_Section):
    """How the service is set up.

    In the lists of names, ``*`` stands for any characters.

    Attributes:
        host: The address to listen on. Any other than loopback requires access keys.
        port: The port to listen on; 0 takes a free one.
        database: The database of runs: sqlite:///… or postgresql://…; defaults to the file
            service/runs.sqlite in the data folder.
        corpora: The sources, indexes and built-in corpora that clients may search; all by default.
        sources: Source files that clients may search too, by the names in them.
        models: The models that requests may name; defaults to the configured model and feedback.
        base_urls: Servers that a request may name as base_url.
        prompts: The prompt versions that requests may choose, as id=version; defaults to all.
        attributors: The attributors that requests may choose.
        caps: What one request may ask for at most.
        limits: How many requests are taken at once, and how fast.
        require_keys: Require access keys on loopback too.
        cors_origins: Web pages whose scripts may read the answers; defaults to none.
        concurrency: How many runs this process works on at once.
        audit_concurrency: How many of these runs may be audits.
        grace: Seconds that running work gets to finish after the service is told to stop.
        lease: Seconds of silence after which a worker loses its runs to another.
        work: Whether ``fairqr serve`` also does durable runs; if not, ``fairqr work`` does.
        retention: Seconds that finished runs are kept.
        replies: A file that keeps the replies of models; by default they are kept in memory only.
        traces: Record each run in this folder, as JSON lines.
        audits: The folder of audits; defaults to service/audits in the data folder.
    """

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8080, ge=0, le=65_535)
    database: str = Field("", repr=False)  # may hold a password
    corpora: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()
    models: dict[str, ModelEntry] = Field({})
    base_urls: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    attributors: tuple[str, ...] = ("overlap",)
    caps: Caps = Caps()
    limits: Limits = Limits()
    require_keys: bool = False
    cors_origins: tuple[str, ...] = ()
    concurrency: _Count = 8
    audit_concurrency: _Count = 1
    grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 20.0
    lease: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 15.0
    work: bool = True
    retention: _Seconds = 7 * 86_400.0
    replies: Path | None = None
    traces: Path | None = None
    audits: Path | None = None

    @property
    def audits_folder(self) -> Path:
        """The folder of audits."""
        return self.audits or data_dir() / "service" / "audits"

    @field_validator("base_urls")
    @classmethod
    def _are_urls(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_web_address(value) for value in values)

    @field_validator("prompts")
    @classmethod
    def _are_versions(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            id_, equals, version = value.partition("=")
            if not (id_ and equals and version):
                raise ValueError("write each as id=version, such as refine=v2 or refine=*")
        return values


class Gathered(NamedTuple):
    """How the service is set up, and where the values are from that are no defaults."""

    settings: ServiceSettings
    sources: Sources


def service_settings(**given: Any) -> ServiceSettings:
    """Return how the service is set up.

    Args:
        given: Explicit values of :class:`ServiceSettings`; None counts as not given, and a section
            may be given in part, as a mapping.

    Raises:
        ConfigError: A value is wrong; the sentence says where it is from.
    """
    return gather(**given).settings


def gather(**given: Any) -> Gathered:
    """Return how the service is set up, with sources; see :func:`service_settings`."""
    values, sources = of_file(SERVICE, ServiceSettings)
    read_keys(values, sources, "models")
    # Strictly, since TOML has types; variables have none.
    text = json.dumps(values, default=str)
    try:
        ServiceSettings.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise _wrong(error, sources) from None
    for name, (variable, value) in of_variables(SERVICE, ServiceSettings).items():
        lay_over(values, name, value, names=isinstance(value, dict))
        sources[name] = ValueSource("variable", variable)
    for name, value in given.items():
        if value is not None:
            lay_over(values, name, value)
            sources[name] = ValueSource("argument")
    try:
        return Gathered(ServiceSettings.model_validate(values), sources)
    except ValidationError as error:
        raise _wrong(error, sources) from None


def service_variables() -> list[str]:
    """Return the names of the variables that set up the service."""
    return [variable_of(f"{SERVICE}.{name}") for name, _ in names_of(ServiceSettings)]


def _wrong(error: ValidationError, sources: Sources) -> ConfigError:
    """Return the sentence about the first value that is wrong, without the value."""
    where, why = first_problem(error)
    if error.errors()[0]["type"] == "extra_forbidden":
        why = "there is no such setting"
    source = source_of(where, sources)
    said = {"file": f"In the settings file {source.place}, ", "variable": f"{source.place}: "}
    return ConfigError(
        f"{said.get(source.kind, '')}{SERVICE}.{one_line(where, 120)} is wrong: {one_line(why)}; "
        "mend it."
    )


def _web_address(value: str) -> str:
    """Return the address of a server; refused where it is none, without its text in the error."""
    if not is_web_address(value):
        raise ValueError("write it like http://127.0.0.1:8000/v1")
    return value
