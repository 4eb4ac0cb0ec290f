"""An index of people that fairqr did not make, for tests of attached engines."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from fairqr.retrieval.engines.elasticsearch.attaching import open_elasticsearch
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.source import ElasticsearchSource, Source
from tests.patience import PATIENCE

TOPICS = ["physicist", "tennis", "opera", "river", "railway", "theorem", "novel", "election"]
PLACES = ["North.America", "a,b*", "_id", '"quoted"', "Ärmel"]

MAPPING: dict[str, Any] = {
    "properties": {
        "headline": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "bio": {"type": "text", "analyzer": "english"},
        "note": {"type": "text"},
        "person": {"properties": {"sex": {"type": "keyword"}, "born": {"type": "date"}}},
        "gender": {"type": "alias", "path": "person.sex"},
        "height": {"type": "integer"},
        "alive": {"type": "boolean"},
        "place": {"type": "keyword"},
        "jobs": {"type": "nested", "properties": {"field": {"type": "keyword"}}},
        "number": {"type": "keyword"},
        "published": {"type": "boolean"},
        "award": {"type": "keyword"},
        "empty": {"type": "keyword"},
    }
}


def _people(count: int) -> list[dict[str, Any]]:
    draw = random.Random(5)
    found = []
    for number in range(count):
        words = [draw.choice(TOPICS) for _ in range(draw.randint(5, 40))]
        person: dict[str, Any] = {
            "headline": f"{draw.choice(TOPICS)} {number}",
            "bio": " ".join(words),
            "note": "plain",
            "height": 150 + number % 50,
            "alive": number % 3 == 0,
            "place": [PLACES[number % 5], PLACES[(number + 1) % 5]][: 1 + number % 2],
            "jobs": [{"field": "science"}, {"field": ["art", "science"][number % 2]}],
            "number": f"n{number:03}",
            "published": number % 10 != 9,
            "award": ["True", "False", "1", "0.0"][number % 4],
        }
        person["person"] = {"born": f"{1900 + number % 100}-06-15"}
        if number % 7:
            person["person"]["sex"] = ["F", "f", "M", "M", "X"][number % 5]
        found.append(person)
    return found


PEOPLE = {f"p{number:03}": person for number, person in enumerate(_people(200))}

ATTRIBUTES: dict[str, Any] = {
    "gender": {"field": "person.sex", "groups": {"female": ["F", "f"], "male": ["M"]}}
}

LABELS: dict[str, Any] = {
    **ATTRIBUTES,
    "alias": {**ATTRIBUTES["gender"], "field": "gender", "unknown": "group"},
    "height": {"field": "height", "groups": {"tall": {"gt": 180}, "small": {"lte": 179.5}}},
    "some": {"field": "height", "groups": {"known": ["1_60", "162.0", "164"], "other": ["170"]}},
    "era": {"field": "person.born", "groups": {"old": {"lte": 1949}, "young": {"gt": 1949}}},
    "alive": {"field": "alive", "groups": {"yes": True, "no": False}},
    "living": {"field": "alive", "groups": {"yes": 1, "no": 0}},
    "award": {"field": "award", "groups": {"yes": True, "no": False}},
    "place": {"field": "place", "groups": PLACES},
}
"""Labels of every kind that a server can filter by: 18 groups, and one that is unknown."""


class Server:
    """What a test does to a server by hand.

    Attributes:
        engine: Which one it is.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.client = httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE, **options)

    @cached_property
    def engine(self) -> str:
        return str(self.ask("GET", "/")["version"].get("distribution", "elasticsearch"))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.client.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    @contextmanager
    def index(
        self,
        name: str,
        documents: Mapping[str, Mapping[str, Any]],
        mapping: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Iterator[str]:
        """Make an index for as long as the block runs."""
        self.client.delete(f"/{name}")
        settings = {"number_of_replicas": 0, **settings}
        self.ask("PUT", f"/{name}", {"mappings": mapping or MAPPING, "settings": settings})
        self.write(name, documents)
        try:
            yield name
        finally:
            self.client.delete(f"/{name}")

    def write(self, name: str, documents: Mapping[str, Mapping[str, Any]]) -> None:
        lines: list[Any] = []
        for id_, document in documents.items():
            lines += [{"index": {"_id": id_}}, document]
        if lines:
            answer = self.client.post(
                f"/{name}/_bulk?refresh=true",
                content="".join(json.dumps(line) + "\n" for line in lines),
                headers={"content-type": "application/x-ndjson"},
            )
            assert answer.json().get("errors") is False, answer.text


@contextmanager
def people(url: str, name: str, **options: Any) -> Iterator[Server]:
    """Run with an index of all people on a server."""
    server = Server(url)
    with server.client, server.index(name, PEOPLE, **options):
        yield server


def state(server: Server, index: str) -> dict[str, Any]:
    """Return all that would change if anything were written, or left open.

    Other tests make indexes of other names meanwhile, so of those only what names us is seen.
    """
    indices = [one["index"] for one in server.ask("GET", "/_cat/indices?format=json")]
    stats = server.ask("GET", f"/{index}/_stats")["_all"]["primaries"]
    counters = ("index_total", "delete_total", "noop_update_total")
    return {
        "mapping": server.ask("GET", f"/{index}/_mapping"),
        "settings": server.ask("GET", f"/{index}/_settings"),
        "documents": server.ask("GET", f"/{index}/_count")["count"],
        "indexing": {key: stats["indexing"][key] for key in counters},
        "contexts": (stats["search"]["open_contexts"], stats["search"]["scroll_current"]),
        "indices": sorted(one for one in indices if index in one or "fairqr" in one),
    }


def described(
    at: Server | str | Sequence[str] | None, index: str, **changes: Any
) -> ElasticsearchSource:
    """Return a source over an index of people; a change of None leaves a part out."""
    parts = {
        "name": "people",
        "engine": at.engine if isinstance(at, Server) else "elasticsearch",
        "url": at.url if isinstance(at, Server) else at,
        "index": index,
        "title": "headline",
        "text": ["bio"],
        "attributes": ATTRIBUTES,
        **changes,
    }
    source = Source.model_validate({key: part for key, part in parts.items() if part is not None})
    assert isinstance(source, ElasticsearchSource)
    return source


@asynccontextmanager
async def attached(
    source: ElasticsearchSource, folder: Path | None = None
) -> AsyncIterator[ElasticsearchEngine]:
    """Attach a source for as long as the block runs."""
    labels = await LabelReader.open(
        source.attributes, source.folder, store=(folder or Path("/nowhere")) / "labels"
    )
    async with aclosing(await open_elasticsearch(source, labels)) as engine:
        yield engine
