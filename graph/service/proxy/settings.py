"""The settings of a proxy: one YAML file."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.opening import open_language_model
from fairqr.base.errors import ConfigError
from fairqr.base.yaml_file import load_yaml
from fairqr.graph.integrations.learnt import LearntWords
from fairqr.graph.search.context import Context, checked_context
from fairqr.retrieval.fairness.dimension import dimensions_of
from fairqr.retrieval.sources.schema import Schema, validated
from fairqr.retrieval.sources.source import Address, Source, check_server, load_source

Mode = Literal["shadow", "fair"]

DEFAULTS = {"certify": False}
"""Search parameters that differ from those of searches: nobody reads a list's bound while a client
waits for its hits, and it takes a third of the time."""


class ProxiedIndex(BaseModel, frozen=True, extra="forbid"):
    """An index, an alias or a pattern whose searches are re-ranked, named as clients name it."""

    source: Path = Field(description="The source file with its labels.")
    mode: Mode = Field("shadow", description="shadow changes nothing and only records.")
    share: float = Field(1.0, ge=0, le=1, description="The share of queries to re-rank, by hash.")
    swap: float = Field(
        0.0,
        ge=0,
        le=1,
        description="The share of queries with a fair list, each day others, in which chance may "
        "swap the first rank with another one, to learn how far down users look.",
    )
    window: int = Field(100, ge=2, le=1000, description="How many of the first hits to re-rank.")
    amortised: Path | None = Field(
        None, description="A file of the amortised deficits of groups; off by default."
    )
    parameters: dict[str, Any] = Field(
        {},
        description="Search parameters, such as target and k. With certify, the log has the bound "
        "of each list, too, which is off by default.",
    )

    def open(self, folder: Path) -> tuple[Source, Context]:
        """Return the source and what to aim at.

        Raises:
            InputError: The source is missing or wrong, or the parameters do not fit it.
        """
        source = load_source(folder / self.source)
        context = checked_context(Context, DEFAULTS | self.parameters)
        schema = Schema(attributes=source.attributes)
        dimensions = dimensions_of(schema, context.attributes, intersect=context.intersect)
        context.effective_target.check([dimension.attribute for dimension in dimensions])
        return source, context


class ProxySettings(BaseModel, frozen=True, extra="forbid"):
    """What a proxy stands in front of, and what it does."""

    cluster: Address = Field(description="The address of Elasticsearch or OpenSearch.")
    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(9201, ge=0, le=65535, description="The port to listen on.")
    ca: Path | None = Field(None, description="Authorities that check the cluster's certificate.")
    certificate: Path | None = Field(None, description="The proxy's own certificate, for https.")
    key: Path | None = Field(None, description="The key of that certificate.")
    within: float = Field(0.1, gt=0, le=10, description="Seconds that re-ranking may take.")
    memory: int = Field(2_000, ge=200, description="The most megabytes of the re-ranking process.")
    body: int = Field(1_000_000, ge=1_000, description="The largest body to re-rank, in bytes.")
    log: Path | None = Field(None, description="The folder of the log; no log by default.")
    log_words: bool = Field(False, description="Record words of queries, not only their hashes.")
    log_bytes: int = Field(100_000_000, ge=10_000_000, description="How large the log may be.")
    metrics_port: int = Field(
        0, ge=0, le=65535, description="The port for Prometheus; 0 for no metrics."
    )
    indexes: dict[str, ProxiedIndex] = Field(min_length=1, description="What to re-rank, by name.")
    model: str | None = Field(None, description="The model whose words of earlier searches count.")
    replies: Path | None = Field(
        None, description="The file of its replies; by default that of your searches."
    )
    ask: Literal["never", "afterwards"] = Field(
        "never", description="afterwards sends it new queries, once they are answered."
    )
    folder: Path = Field(Path(), exclude=True, description="Where relative paths begin.")

    @field_validator("cluster")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        check_server(url)
        return url.rstrip("/")

    def learnt_words(self) -> LearntWords | None:
        """Return what knows the model's words; None if no model is named.

        Raises:
            ModelUnavailableError: There is no such model.
        """
        if self.model is None:
            return None
        cache = True if self.replies is None else ReplyCache(self.folder / self.replies)
        return LearntWords(open_language_model(self.model, cache=cache))

    def trusted(self) -> ssl.SSLContext:
        """Return what the cluster's certificate is checked by."""
        authorities = None if self.ca is None else self.folder / self.ca
        return ssl.create_default_context(cafile=authorities)

    def certified(self) -> dict[str, Any]:
        """Return the proxy's own certificate, as uvicorn takes it."""
        files = {"ssl_certfile": self.certificate, "ssl_keyfile": self.key}
        return {name: str(self.folder / file) for name, file in files.items() if file}


def proxy_settings(path: Path) -> ProxySettings:
    """Read the settings of a proxy; its paths are relative to the file.

    Raises:
        InputError: The file, or one that it names, is missing or wrong.
    """
    in_file = load_yaml(path, "settings", ConfigError)
    if isinstance(in_file, dict):
        in_file = {**in_file, "folder": path.absolute().parent}
    settings = validated(ProxySettings, in_file, f"The proxy {path}", ConfigError)
    if settings.key and not settings.certificate:
        raise ConfigError(f"The proxy {path} has a key without a certificate; name both, or none.")
    if settings.model is None and (settings.replies or settings.ask != "never"):
        raise ConfigError(f"The proxy {path} names no model; replies and ask need one.")
    settings.learnt_words()
    for index in settings.indexes.values():
        index.open(settings.folder)
    return settings
