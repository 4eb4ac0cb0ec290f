"""A collection that is not of people: adverts of jobs, made by chance. Equal on every run.

``python -m benchmarks.jobs FOLDER`` writes 720 adverts with schema, topics and judgements, for
``fairqr experiment run … --collection FOLDER``. An advert is relevant to the topic of its
occupation; half of them name another one, of a colleague. Companies mostly write the usual title,
which is the topic; councils and charities often say in plain words who they look for, and adverts
from the capital are shorter. So nothing in an engine speaks of employers or places, and ranking by
words shows some less than others all the same.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

ADVERTS = 720
SEED = 720
SKILLS = 4
"""How many skills an advert asks for."""

WORDS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
ATTRIBUTES = ("employer", "place")
LENGTHS = {"capital": (4, 8), "city": (8, 16), "country": (12, 24)}
"""How many words of its employer and place an advert has, from and below."""


def adverts(count: int = ADVERTS) -> pd.DataFrame:
    """Return adverts by ``id``, with the columns of the documents and ``occupation``."""
    random = np.random.default_rng(SEED)
    rows = pd.DataFrame({"id": [f"job{number:04}" for number in range(count)]})
    rows["occupation"] = random.choice([*WORDS["occupations"]], count)
    for name in ATTRIBUTES:
        shares = _shares(name)
        rows[name] = random.choice([*shares], count, p=[*shares.values()])
    texts = []
    for row in rows.itertuples():
        title = _title(row, random)
        texts.append((title, _text(row, random)))
    rows[["title", "text"]] = texts
    return rows


def _shares(attribute: str) -> dict[str, float]:
    """Return the share of each kind of employer, or of place."""
    return {kind: words[1] for kind, words in WORDS[f"{attribute}s"].items()}


def _title(advert: Any, random: np.random.Generator) -> str:
    """Return the title of an advert: the usual one, or plain words."""
    in_plain_words, _ = WORDS["occupations"][advert.occupation]
    _, _, usual_share = WORDS["employers"][advert.employer]
    is_usual = random.random() < usual_share
    if is_usual:
        return f"{advert.occupation} wanted"
    return f"We look for someone who {in_plain_words}"


def _text(advert: Any, random: np.random.Generator) -> str:
    """Return the text of an advert: skills, perhaps a colleague, the employer and the place."""
    _, skills = WORDS["occupations"][advert.occupation]
    wanted_skills = random.permutation(skills.split())[:SKILLS]
    colleague = f" You work beside a {random.choice([*WORDS['occupations']])}."
    words_of_employer = WORDS["employers"][advert.employer][0].split()
    words_of_place = WORDS["places"][advert.place][0].split()
    length = random.integers(*LENGTHS[advert.place])
    filler = random.choice([*words_of_employer, *words_of_place], length)
    has_colleague = random.random() < 0.5

    text = f"You know {', '.join(wanted_skills)}."
    if has_colleague:
        text += colleague
    return f"{text} About us: {' '.join(filler)}."


def write(folder: Path, count: int = ADVERTS) -> None:
    """Write documents, schema, topics and judgements."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = adverts(count)
    fields = ["id", "title", "text", *ATTRIBUTES]
    rows[fields].to_json(folder / "documents.jsonl", orient="records", lines=True)

    attributes = {}
    for name in ATTRIBUTES:
        shares = _shares(name)
        attributes[name] = {"field": name, "groups": [*shares], "population": shares}
    schema = json.dumps({"attributes": attributes})
    (folder / "schema.yaml").write_text(schema, encoding="utf-8")

    ids = {}
    with (folder / "topics.jsonl").open("w", encoding="utf-8") as stream:
        for number, (title, (_, skills)) in enumerate(WORDS["occupations"].items(), start=1):
            ids[title] = f"topic{number:02}"
            topic = {"id": ids[title], "title": title, "keywords": skills.split()}
            stream.write(json.dumps(topic) + "\n")

    topics = rows["occupation"].map(ids)
    judgements = [f"{topic} 0 {id_} 1\n" for topic, id_ in zip(topics, rows["id"], strict=True)]
    (folder / "qrels.txt").write_text("".join(judgements), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
