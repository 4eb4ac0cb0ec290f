"""How the service is set up: where it listens, what it offers, and how much of it.

Explicit arguments win over the variables ``FAIRQR_SERVICE_…``, these over the section ``[service]``
of the settings file, and that over the defaults.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from fairqr.base.errors import ConfigError, first_problem, one_line
from fairqr.base.settings import SERVICE, Source, is_web_address, variable_of
from fairqr.graph.service.sources import (
    Sources,
    lay_over,
    names_of,
    of_file,
    of_variables,
    read_keys,
    source_of,
)

__all__ = [
    "Caps",
    "Gathered",
    "Limits",
    "ModelEntry",
    "ServiceSettings",
    "gather",
    "service_settings",
    "service_variables",
]

_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ModelEntry(_Section):
    """A model that requests may name.

    Attributes:
        base_url: Of the server that has it; where None, the one of its provider.
        api_key: For that server. In the file it may be given as ``api_key_env``, the name of the
            variable that holds it.
        timeout: Of one request to it, in seconds.
    """

    base_url: str | None = None
    api_key: SecretStr | None = None
    timeout: _Seconds = 60.0

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        return None if value is None else _web_address(value)


class Caps(_Section):
    """What one request may ask for, at the most.

    Attributes:
        k: Documents shown.
        depth: Documents that a query retrieves.
        max_iterations: Rounds of refinement.
        samples: Rankings that an answer samples.
        documents: That the generator reads of each.
        pairs: That a probe compares.
        probe_documents: That take part in a probe.
        model_calls, tokens: Of language models, in one run.
        seconds: That a run may take.
        query_characters: Of a query or a question.
        body_bytes: Of a request's body.
    """

    k: _Count = 100
    depth: _Count = 1000
    max_iterations: Annotated[int, Field(ge=0)] = 10
    samples: _Count = 100
    documents: _Count = 20
    pairs: _Count = 100
    probe_documents: _Count = 100
    model_calls: _Count = 500
    tokens: _Count = 1_000_000
    seconds: _Seconds = 300.0
    query_characters: _Count = 2000
    body_bytes: _Count = 1_000_000


class Limits(_Section):
    """How much may be asked at once, and how fast.

    Attributes:
        rate: Requests of one key, such as ``600/minute``; several with ``;``. Empty for no limit.
        live: Runs of one key that wait or are under way.
        queue: Runs that wait, of all keys.
        body_seconds: By then a request's body must have come.
        connections: At once.
    """

    rate: str = "600/minute"
    live: _Count = 32
    queue: _Count = 200
    body_seconds: _Seconds = 20.0
    connections: _Count = 1000

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
        host, port: Where it listens; port 0 is any free one.
        database: URL of the database of runs, ``sqlite:///…`` or ``postgresql://…``. Empty for the
            file ``service/runs.sqlite`` in the data folder.
        corpora: Names of the sources, indexes and built-in corpora that may be searched; all where
            empty.
        sources: Source files that may be searched too, by the names in them.
        models: Those that requests may name. Where empty, the configured default model and
            ``feedback``.
        base_urls: Servers that a request may name as ``base_url``.
        prompts: Versions that requests may choose, as ``id=version``; all where empty.
        attributors: That judge what answers rest on.
        caps: What one request may ask for.
        limits: How much may be asked at once, and how fast.
        require_keys: Demand access keys on loopback too.
        cors_origins: Web pages that browsers let read the answers; none where empty.
        concurrency: Runs at once in this process.
        grace: Seconds that running work has to end, after the service was told to.
        lease: Seconds after which a worker that has not been heard of loses its runs.
        retention: Seconds that runs are kept, once they are over.
        heartbeat: Seconds after which a silent stream tells that it is alive.
        traces: A folder to record each run in, as ``<id>.jsonl``.
    """

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8080, ge=0, le=65_535)
    database: str = Field("", repr=False)  # may hold a password
    corpora: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()
    models: dict[str, ModelEntry] = {}
    base_urls: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    attributors: tuple[str, ...] = ("overlap",)
    caps: Caps = Caps()
    limits: Limits = Limits()
    require_keys: bool = False
    cors_origins: tuple[str, ...] = ()
    concurrency: _Count = 8
    grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 20.0
    lease: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 15.0
    retention: _Seconds = 7 * 86_400.0
    heartbeat: _Seconds = 15.0
    traces: Path | None = None

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
        sources[name] = Source("variable", variable)
    for name, value in given.items():
        if value is not None:
            lay_over(values, name, value)
            sources[name] = Source("argument")
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
