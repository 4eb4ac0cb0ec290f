"""A source: one YAML file that says where the documents are, and which groups they belong to.

A source can be kept in version control: it names credentials and never contains them. Its paths are
relative to the file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    StringConstraints,
    field_validator,
    model_validator,
)

from fairqr.base.errors import SourceError
from fairqr.base.settings import is_web_address
from fairqr.base.yaml_file import load_yaml
from fairqr.retrieval.engines.request_template import QUERY, check_template
from fairqr.retrieval.sources.group_values import Texts
from fairqr.retrieval.sources.schema import Attribute, DescribedModel, validated

SourceName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")]
Address = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
HIDING = ("from", "post_filter", "terminate_after")
"""Parts of a request that hide documents which match."""


def check_server(url: str) -> None:
    """Refuse a URL that is not the address of a search server, or contains a password.

    Raises:
        ValueError: The URL is refused; the message never quotes a password.
    """
    server = urlsplit(url).netloc if is_web_address(url) else ""
    if "@" in server:
        raise ValueError("the address contains a password; name it in credentials")
    if not server or "{" in server or re.search(r"[?#\s]", url):
        raise ValueError("the url is not an address such as https://localhost:9200")


class Source(DescribedModel):
    """Where documents are, and which groups they belong to.

    ``Source.model_validate({"engine": "elasticsearch", …})`` returns the class of that engine, and
    raises pydantic's ``ValidationError``. :func:`load_source` and :func:`source_of` raise a
    :class:`SourceError` of one sentence.
    """

    kinds: ClassVar[dict[str, type[Source]]] = {}
    opener: ClassVar[str] = ""
    """The function that opens its engine, as ``module:function``; it takes the source and a
    :class:`~fairqr.retrieval.sources.labels.LabelReader`. Its module also has ``check(engine)``,
    and is only imported when it is needed, because clients are slow to import."""

    name: SourceName = Field(
        description="The name in commands: a-z, 0-9, dots, dashes, underscores."
    )
    engine: str
    attributes: dict[str, Attribute] = Field(
        min_length=1, description="The attributes to measure exposure over."
    )
    link: str | None = Field(None, description="The field of web addresses, which answers cite.")
    timeout: float = Field(30.0, gt=0, le=600, description="Seconds allowed for one request.")
    concurrency: int = Field(8, ge=1, le=1000, description="How many requests may run at a time.")
    requests_per_second: float | None = Field(None, gt=0, description="The most requests a second.")
    folder: Path = Field(Path(), exclude=True, description="Its paths are relative to this folder.")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register a new kind of source under the name of its engine."""
        super().__pydantic_init_subclass__(**kwargs)
        Source.kinds[cls.model_fields["engine"].default] = cls

    @model_validator(mode="wrap")
    @classmethod
    def _is_of_its_engine(cls, data: Any, handler: ModelWrapValidatorHandler[Source]) -> Source:
        if cls is not Source or not isinstance(data, Mapping):
            return handler(data)
        kind = cls.kinds.get(str(data.get("engine")))
        if kind is None:
            raise ValueError(f"engine must be one of {', '.join(cls.kinds)}")
        return kind.model_validate(data)

    @property
    def fingerprint(self) -> str:
        """A hash that changes when the description changes."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def path(self, written: str) -> Path:
        """Return a path from the file, resolved in its folder."""
        return self.folder / written


class VectorField(BaseModel, frozen=True, extra="forbid"):
    """A vector field, and the encoder that filled it."""

    field: str = Field(min_length=1, description="The field, a dense_vector or a knn_vector.")
    embeddings: str | None = Field(
        None, description="The encoder that made it and encodes queries."
    )


class QueryFields(BaseModel, frozen=True, extra="forbid"):
    """How the engine matches words, if the source has no request of its own."""

    fields: tuple[str, ...] = Field((), description="Fields with boosts, such as `headline^3`.")
    operator: Literal["or", "and"] = Field("or", description="Match any word, or all words.")
    type: Literal["best_fields", "most_fields", "cross_fields", "phrase"] = Field(
        "best_fields", description="How the scores of several fields are combined."
    )


class ElasticsearchSource(Source):
    """An index, an alias or a pattern on an Elasticsearch server, used as it is."""

    opener = "fairqr.retrieval.engines.elasticsearch.attaching:open_elasticsearch"

    engine: Literal["elasticsearch"] = "elasticsearch"
    url: Address | tuple[Address, ...] | None = Field(
        None, description="The address of each node; FAIRQR_ELASTICSEARCH_URL by default."
    )
    cloud_id: str | None = Field(None, description="The id of an Elastic Cloud deployment.")
    credentials: str | None = Field(None, description="[credentials.NAME] of the settings file.")
    client: Any = Field(None, exclude=True, repr=False, description="A client of yours (Python).")
    index: str = Field(min_length=1, description="An index, an alias, or a pattern.")
    id: str = Field("_id", min_length=1, description="The field of document ids, or _id.")
    title: str | None = Field(None, min_length=1, description="The field of titles.")
    text: Texts = Field((), description="The fields of texts, in reading order.")
    query: QueryFields | None = Field(None, description="How words are matched.")
    body: dict[str, Any] | None = Field(None, description="A request with {{query}} and {{size}}.")
    filter: dict[str, Any] | None = Field(None, description="A filter in the engine's language.")
    vectors: VectorField | None = Field(None, description="A field for searches by vectors.")
    allow_partial: bool = Field(False, description="Accept results that lack failed shards.")

    @field_validator("url")
    @classmethod
    def _urls_are_addresses(cls, url: Any) -> Any:
        addresses = [url] if isinstance(url, str) else url or []
        for address in addresses:
            check_server(address)
        return url

    @model_validator(mode="after")
    def _names_one_server(self) -> ElasticsearchSource:
        if self.url and self.cloud_id:
            raise ValueError("give url or cloud_id, not both")
        if self.client is not None:
            # We compare names, because importing a client takes long.
            kinds = {base.__name__.lower() for base in type(self.client).__mro__}
            if f"async{self.engine}" not in kinds:
                raise ValueError(f"client is not an asynchronous client of {self.engine}")
        return self

    @model_validator(mode="after")
    def _says_how_to_search(self) -> ElasticsearchSource:
        if self.body is not None:
            if self.query is not None:
                raise ValueError("give query or body, not both")
            _check_body(self.body)
            return self
        has_fields = self.text or self.title or self.query
        if not has_fields:
            raise ValueError("name the fields to search: text, title, or query")
        return self

    @property
    def searched_fields(self) -> tuple[str, ...]:
        """The fields to match words in, with their boosts."""
        if self.query is not None and self.query.fields:
            return self.query.fields
        if self.title:
            return (self.title, *self.text)
        return self.text


def _check_body(body: dict[str, Any]) -> None:
    """Refuse a request that is no template, or that hides documents which match."""
    check_template(body)
    hiding = [part for part in HIDING if part in body]
    if hiding:
        raise ValueError(f"body has '{hiding[0]}', which hides matching documents; remove it")


class OpenSearchSource(ElasticsearchSource):
    """An index, alias or pattern on an OpenSearch server, used as it is."""

    engine: Literal["opensearch"] = "opensearch"  # type: ignore[assignment]


class HttpSource(Source):
    """Any search endpoint that returns JSON.

    The expressions are JMESPath: ``hits`` is applied to the response, the others to each hit.
    """

    opener = "fairqr.retrieval.engines.http:open_http"

    engine: Literal["http"] = "http"
    url: Address = Field(description="The endpoint; {{query}} and {{size}} in it are filled in.")
    method: Literal["GET", "POST"] = "POST"
    body: dict[str, Any] | None = Field(None, description="The body, with {{query}} and {{size}}.")
    credentials: str | None = Field(None, description="[credentials.NAME] of the settings file.")
    hits: str = Field(description="The list of hits in the response.")
    id: str = Field(description="The id of a hit.")
    score: str | None = Field(None, description="The score of a hit; 1/rank by default.")
    title: str | None = Field(None, description="The title of a hit.")
    text: str | None = Field(None, description="The text of a hit, or a list of texts.")
    sample: str | None = Field(None, description="A query that finds something, for the check.")
    max_bytes: int = Field(10_000_000, ge=1, description="The largest response to read, in bytes.")

    @model_validator(mode="after")
    def _can_be_asked(self) -> HttpSource:
        server = urlsplit(self.url)._replace(path="", query="", fragment="")
        check_server(server.geturl())
        if self.body is not None and self.method == "GET":
            raise ValueError("a GET request has no body; write 'method: POST'")
        if self.body is not None or QUERY not in self.url:
            check_template(self.body, needs_query=QUERY not in self.url)
        return self


class RunSource(Source):
    """Exported rankings: TREC run files, with labels in files beside them."""

    opener = "fairqr.retrieval.engines.run:open_run"

    engine: Literal["run"] = "run"
    runs: Texts = Field(min_length=1, description="TREC run files.")
    topics: str | None = Field(None, description="Query ids and queries, to find rankings by text.")
    documents: str | None = Field(None, description="JSON Lines with the titles and texts.")


class TantivySource(Source):
    """An embedded index, built from a corpus of JSON Lines; it is made before it is opened."""

    engine: Literal["tantivy"] = "tantivy"
    documents: str = Field(description="A JSON Lines file of documents.")


def is_source_file(corpus: str) -> bool:
    """Return whether a corpus given by a user is the path of a source file."""
    return corpus.endswith((".yaml", ".yml"))


def load_source(path: Path) -> Source:
    """Read a source from a YAML file.

    Raises:
        SourceError: The file is missing, is not YAML, or does not describe a source.
    """
    data = load_yaml(path, "source", SourceError)
    if isinstance(data, Mapping):
        data = {**data, "folder": path.absolute().parent}
    return validated(Source, data, f"The source {path}", SourceError)


def source_of(description: Mapping[str, Any]) -> Source:
    """Return a source described by a program; paths in it are relative to the working folder.

    Raises:
        SourceError: It does not describe a source.
    """
    return validated(Source, description, "The source", SourceError)
