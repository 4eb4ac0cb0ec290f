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

ADVERTS, SEED = 720, 720
WORDS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
LENGTHS = {"capital": (4, 8), "city": (8, 16), "country": (12, 24)}
"""How many words of its employer and place an advert has, from and below."""


def adverts(count: int = ADVERTS) -> pd.DataFrame:
    """Return adverts by ``id``, with the columns of the documents and ``occupation``."""
    draw = np.random.default_rng(SEED)
    employers, places = WORDS["employers"], WORDS["places"]
    found = pd.DataFrame({"id": [f"job{number:04}" for number in range(count)]})
    found["occupation"] = draw.choice([*WORDS["occupations"]], count)
    for name, kinds in (("employer", employers), ("place", places)):
        found[name] = draw.choice([*kinds], count, p=[words[1] for words in kinds.values()])
    texts = []
    for row in found.itertuples():
        plain, skills = WORDS["occupations"][row.occupation]
        own, _, share = employers[row.employer]
        is_usual = draw.random() < share
        title = f"{row.occupation} wanted" if is_usual else f"We look for someone who {plain}"
        asked = draw.permutation(skills.split())[:4]
        colleague = f" You work beside a {draw.choice([*WORDS['occupations']])}."
        around = [*own.split(), *places[row.place][0].split()]
        filler = draw.choice(around, draw.integers(*LENGTHS[row.place]))
        told = f"You know {', '.join(asked)}." + colleague * int(draw.random() < 0.5)
        texts.append((title, told + f" About us: {' '.join(filler)}."))
    found[["title", "text"]] = texts
    return found


def write(folder: Path, count: int = ADVERTS) -> None:
    """Write documents, schema, topics and judgements."""
    folder.mkdir(parents=True, exist_ok=True)
    made = adverts(count)
    fields = ["id", "title", "text", "employer", "place"]
    made[fields].to_json(folder / "documents.jsonl", orient="records", lines=True)
    shares = {
        name: {kind: words[1] for kind, words in WORDS[f"{name}s"].items()}
        for name in ("employer", "place")
    }
    schema = {
        name: {"field": name, "groups": [*own], "population": own} for name, own in shares.items()
    }
    (folder / "schema.yaml").write_text(json.dumps({"attributes": schema}), encoding="utf-8")
    ids = {title: f"topic{number:02}" for number, title in enumerate(WORDS["occupations"], 1)}
    topics = [
        {"id": ids[title], "title": title, "keywords": skills.split()}
        for title, (_, skills) in WORDS["occupations"].items()
    ]
    with (folder / "topics.jsonl").open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(topic) + "\n" for topic in topics)
    judged = zip(made["occupation"].map(ids), made["id"], strict=True)
    lines = "".join(f"{topic} 0 {id_} 1\n" for topic, id_ in judged)
    (folder / "qrels.txt").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
