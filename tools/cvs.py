"""An index of CVs, made by chance, that shows nobody over fifty.

``python tools/cvs.py FOLDER`` writes 5,000 CVs with job titles, the schema of their ages,
queries and judgements. A CV is relevant to the query of its occupation. Whoever has worked for ten
years or more may be a "Senior Software Engineer", and all people from fifty are; and BM25 puts
"Software Engineer" above "Senior Software Engineer", since it is shorter. So nothing in the engine
speaks of age, and it shows none of them (docs/results/audits.md).
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

CVS = 5_000
FIFTY, OLDEST, YOUNGEST = 50, 66, 21
OVER_FIFTY = 0.29
"""The share of people from fifty."""

RANKS = ("Senior", "Lead", "Principal", "Chief")
SKILLS = {
    "Software Engineer": "python services databases testing deployment architecture",
    "Data Analyst": "statistics dashboards spreadsheets surveys forecasting queries",
    "Civil Engineer": "bridges concrete drainage surveying roads foundations",
    "Project Manager": "budgets schedules stakeholders risks milestones contracts",
    "Staff Nurse": "wards patients medication triage wounds handover",
    "Primary Teacher": "lessons reading arithmetic pupils parents classrooms",
    "Truck Driver": "haulage routes logbooks loading deliveries motorways",
    "Graphic Designer": "logos layouts typography posters illustration brands",
    "Tax Accountant": "returns ledgers audits payroll deductions filings",
    "Sales Representative": "customers quotas negotiation territories pipelines orders",
    "Pastry Chef": "desserts dough chocolate menus ovens bread",
    "Security Guard": "patrols alarms entrances incidents cameras reports",
    "Legal Secretary": "filings minutes correspondence deadlines dictation archives",
    "Lab Technician": "samples pipettes instruments cultures calibration records",
}
"""Occupations, which are the queries, and what their CVs speak of."""

SCHEMA: dict[str, Any] = {
    "attributes": {
        "age": {"field": "age", "groups": {"under 50": {"lt": FIFTY}, "from 50": {"gte": FIFTY}}}
    }
}


def cvs(count: int = CVS) -> dict[str, dict[str, Any]]:
    """Return CVs by id, each with ``title``, ``text``, ``age`` and ``occupation``."""
    draw = random.Random(50)
    found = {}
    for number in range(count):
        occupation = draw.choice([*SKILLS])
        is_old = draw.random() < OVER_FIFTY
        age = draw.randrange(*((FIFTY, OLDEST) if is_old else (YOUNGEST, FIFTY)))
        has_rank = is_old or (age > 35 and draw.random() < 0.3)
        title = f"{draw.choice(RANKS)} {occupation}" if has_rank else occupation
        skills = " ".join(draw.sample(SKILLS[occupation].split(), 4))
        found[f"cv{number:04}"] = {
            "title": title,
            "text": f"{title} with experience of {skills}.",
            "age": age,
            "occupation": occupation,
        }
    return found


def write(folder: Path) -> None:
    """Write CVs, schema, queries and judgements."""
    folder.mkdir(parents=True, exist_ok=True)
    made = cvs()
    lines = (
        json.dumps({"id": id_, "title": cv["title"], "text": cv["text"], "age": cv["age"]}) + "\n"
        for id_, cv in made.items()
    )
    (folder / "cvs.jsonl").write_text("".join(lines))
    (folder / "cvs.schema.yaml").write_text(json.dumps(SCHEMA, indent=1) + "\n")
    ids = {occupation: f"job{number:02}" for number, occupation in enumerate(SKILLS, start=1)}
    rows = "".join(f"{id_}\t{occupation}\n" for occupation, id_ in ids.items())
    (folder / "queries.tsv").write_text("id\tquery\n" + rows)
    judged = "".join(f"{ids[cv['occupation']]} 0 {id_} 1\n" for id_, cv in made.items())
    (folder / "qrels.txt").write_text(judged)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
