"""Small files in the shapes of TREC Fair 2021 and 2022, as the track's code reads them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PAGES_2022: list[dict[str, Any]] = [
    {"id": 12, "title": "Alba", "url": "https://en.wikipedia.org/wiki/Alba", "plain": "A farmer."},
    {"id": 307, "title": "Bruno", "url": "https://en.wikipedia.org/wiki/Bruno", "plain": "Maize."},
    {"id": 39, "title": "Cleo", "url": "https://en.wikipedia.org/wiki/Cleo", "plain": "A study."},
    # The real corpus has pages whose id stands twice.
    {"id": 12, "title": "Alba again", "url": "https://en.wikipedia.org/wiki/Alba_2", "plain": "B."},
    {"id": 70194530, "title": "No metadata", "url": "", "plain": "Nothing is known of it."},
]


def _page_2022(page: int, **fields: Any) -> dict[str, Any]:
    return {
        "page_id": page,
        "pred_qual": 0.5,
        "qual_cat": "Stub",
        "page_countries": [],
        "page_subcont_regions": [],
        "source_countries": {},
        "source_subcont_regions": {},
        "gender": [],
        "occupations": [],
        "years": [],
        "num_sitelinks": 3,
        "relative_pageviews": 0.25,
        "first_letter": "a",
        "creation_date": "2004-01-01",
        "first_letter_category": "a-d",
        "creation_date_category": "2001-2006",
        "relative_pageviews_category": "High",
        "num_sitelinks_category": "2-4 languages",
        **fields,
    }


METADATA_2022 = [
    # In another order than the articles.
    _page_2022(
        39,
        qual_cat="FA",
        gender=["transgender female", "male"],
        page_subcont_regions=["Melanesia", "Polynesia", "Eastern Asia"],
        source_subcont_regions={"UNK": 2, "Northern America": 6},
    ),
    _page_2022(
        12,
        gender=["female"],
        page_subcont_regions=["Western Africa"],
        occupations=["writer", "juggler"],
    ),
    _page_2022(307, gender=["intersex", "genderfluid"], qual_cat="C"),
    _page_2022(12, gender=["male"], page_subcont_regions=["Western Asia"]),
]


def lines(path: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Write JSON Lines, packed where the name says so."""
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def write_2022(folder: Path) -> Path:
    """Write the files of 2022: the training topics in two shapes, and those of evaluation."""
    lines(folder / "trec_corpus_20220301_plain.json.gz", PAGES_2022)
    lines(folder / "trec_2022_articles_discrete.json.gz", METADATA_2022)
    train = [
        {"id": 84, "title": "Agriculture", "rel_docs": [12, 307, 12, 999]},
        {"id": 265, "title": "Astronomy", "rel_docs": [39, 70194530]},
    ]
    lines(folder / "trec_2022_train_reldocs.jsonl", train)
    table = {
        "id": {"0": 84, "1": 265},
        "title": {"0": "Agriculture", "1": "Astronomy"},
        "keywords": {"0": "['maize', 'corn']", "1": "[\"nebula\", 'laplace']"},
        "rel_docs": {"0": "[12, 307, 999]", "1": "[39, 70194530]"},
    }
    lines(folder / "train_topics_meta.jsonl", [table])
    evaluation = [{"id": 401, "title": "Beer", "rel_docs": [307]}]
    lines(folder / "trec_2022_eval_reldocs.jsonl", evaluation)
    # The list that the topics were chosen from is no file of topics.
    lines(folder / "trec_2022_wikiprojects.json.gz", [*train, *evaluation])
    return folder


def write_2021(folder: Path) -> Path:
    """Write the files of 2021, with the metadata of before and of after the evaluation."""
    pages = [
        {"id": 1, "title": "Ada", "text": "'''Ada''' was a [[farmer]].", "url": "u"},
        {"id": 2, "title": "Ben", "text": "{{Infobox}} Maize.", "url": "u"},
        {"id": 3, "title": "Taira", "text": "A samurai.", "url": "u"},
    ]
    lines(folder / "trec_corpus.json.gz", pages)
    metadata = [
        {
            "page_id": page,
            "quality_score": 0.9,
            "quality_score_disc": quality,
            "geographic_locations": regions,
            "gender": gender,
        }
        for page, quality, regions, gender in (
            (1, "FA", ["Africa", "Europe"], ["cisgender female"]),
            (2, "Stub", [], None),
            (3, "Start", None, ["male", "Taira no Kiyomori"]),
        )
    ]
    lines(folder / "trec_metadata_eval.json.gz", metadata)
    before = [{name: m[name] for name in m if name != "gender"} for m in metadata]
    lines(folder / "trec_metadata.json.gz", before)
    topic = {
        "id": 1,
        "title": "Agriculture",
        "keywords": ["agriculture", "crops"],
        "scope": "Articles on farming.",
        "homepage": "https://en.wikipedia.org/wiki/Wikipedia:WikiProject_Agriculture",
        "rel_docs": [1, 2],
    }
    lines(folder / "trec_topics.json.gz", [topic])
    asked = {"id": 101, "title": "Samurai", "keywords": ["japan"], "scope": "Warriors."}
    lines(folder / "eval-topics.json.gz", [asked])
    lines(folder / "eval-topics-with-qrels.json.gz", [{**asked, "rel_docs": [3], "max_tier": 1}])
    return folder
