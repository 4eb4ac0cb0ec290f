"""An index of CVs, made by chance, that shows nobody over fifty.

``python -m tests.integration.evaluation.cvs FOLDER`` writes 5,000 CVs with job titles, the schema
of their ages, queries and judgements. A CV is relevant to the query of its occupation. Whoever has
worked for ten years or more may be a "Senior Software Engineer", and all people from fifty are; and
BM25 puts "Software Engineer" above "Senior Software Engineer", since it is shorter. So nothing in
the engine speaks of age, and it shows none of them (docs/results/audits.md).
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

CVS = 5_000
FIFTY = 50
OLDEST = 66
YOUNGEST = 21
OVER_FIFTY = 0.29
"""The share of people from fifty."""

RANKS = ("Senior", "Lead", "Principal", "Chief")
SKILLS: dict[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
GROUPS = {"under 50": {"lt": FIFTY}, "from 50": {"gte": FIFTY}}
SCHEMA: dict[str, Any] = {"attributes": {"age": {"field": "age", "groups": GROUPS}}}


def cvs(count: int = CVS) -> dict[str, dict[str, Any]]:
    """Return CVs by id, each with ``title``, ``text``, ``age`` and ``occupation``."""
    draw = random.Random(50)
    documents = {}
    for number in range(count):
        occupation = draw.choice([*SKILLS])
        is_old = draw.random() < OVER_FIFTY
        age = draw.randrange(*((FIFTY, OLDEST) if is_old else (YOUNGEST, FIFTY)))
        has_rank = is_old or (age > 35 and draw.random() < 0.3)
        title = f"{draw.choice(RANKS)} {occupation}" if has_rank else occupation
        skills = " ".join(draw.sample(SKILLS[occupation].split(), 4))
        text = f"{title} with experience of {skills}."
        cv = {"title": title, "text": text, "age": age, "occupation": occupation}
        documents[f"cv{number:04}"] = cv
    return documents


def write(folder: Path) -> None:
    """Write CVs, schema, queries and judgements."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame.from_dict(cvs(), orient="index").rename_axis("id").reset_index()
    fields = ["id", "title", "text", "age"]
    table[fields].to_json(folder / "cvs.jsonl", orient="records", lines=True)
    (folder / "cvs.schema.yaml").write_text(json.dumps(SCHEMA))
    queries = pd.Series({occupation: f"job{n:02}" for n, occupation in enumerate(SKILLS, 1)})
    rows = queries.rename_axis("query").rename("id").reset_index()[["id", "query"]]
    rows.to_csv(folder / "queries.tsv", sep="\t", index=False)
    judged = zip(table["occupation"].map(queries), table["id"], strict=True)
    (folder / "qrels.txt").write_text("".join(f"{job} 0 {id_} 1\n" for job, id_ in judged))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
