"""The vocabulary of every occupation, read from the table beside this module."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Occupation:
    """What can be said of one occupation in general, of whomever it is the occupation."""

    noun: str
    plural: str
    field: str
    also: tuple[str, ...]  # other nouns for the same people, wider or more colloquial
    craft: tuple[str, ...]  # noun phrases for the work, fit to stand after "known for"
    words: tuple[str, ...]  # noun phrases that belong to the field
    says: tuple[str, ...]  # general sentences, without the full stop


def read_occupations(table: Path) -> dict[str, Occupation]:
    """All occupations of the table, by the key that the facts use."""
    entries = yaml.safe_load(table.read_text(encoding="utf-8"))
    return {
        key: Occupation(
            noun=entry["noun"],
            plural=entry.get("plural", f"{entry['noun']}s"),
            field=entry["field"],
            also=tuple(entry["also"]),
            craft=tuple(entry["craft"]),
            words=tuple(entry["words"].split("; ")),
            says=tuple(entry["says"]),
        )
        for key, entry in entries.items()
    }


OCCUPATIONS = read_occupations(Path(__file__).with_name("occupations.yaml"))

# The two wider levels of the source's scheme, as they stand in a sentence.
INDUSTRIES = {
    "ACTIVISM": "activism",
    "BUSINESS": "business",
    "COMPANIONS": "the company of rulers and celebrities",
    "COMPUTER SCIENCE": "computing",
    "DANCE": "dance",
    "DESIGN": "design",
    "ENGINEERING": "engineering",
    "EXPLORERS": "exploration",
    "FILM AND THEATRE": "film and theatre",
    "FINE ARTS": "the fine arts",
    "GOVERNMENT": "government",
    "HISTORY": "historical writing",
    "INDIVIDUAL SPORTS": "individual sports",
    "INVENTION": "invention",
    "LANGUAGE": "language and letters",
    "LAW": "law",
    "MATH": "mathematics",
    "MEDIA PERSONALITY": "the media",
    "MEDICINE": "medicine",
    "MILITARY": "the military",
    "MUSIC": "music",
    "NATURAL SCIENCES": "the natural sciences",
    "OUTLAWS": "life outside the law",
    "PHILOSOPHY": "philosophy",
    "RELIGION": "religion",
    "SOCIAL SCIENCES": "the social sciences",
    "TEAM SPORTS": "team sports",
}
DOMAINS = {
    "ARTS": "the arts",
    "BUSINESS & LAW": "business and law",
    "EXPLORATION": "exploration",
    "HUMANITIES": "the humanities",
    "INSTITUTIONS": "public institutions",
    "PUBLIC FIGURE": "public life",
    "SCIENCE & TECHNOLOGY": "science and technology",
    "SPORTS": "sports",
}

# What people of a domain may be called in the widest sense.
DOMAIN_NOUNS = {
    "ARTS": ("artist", "creative mind", "artist and entertainer"),
    "BUSINESS & LAW": ("professional",),
    "EXPLORATION": ("traveller", "pioneer"),
    "HUMANITIES": ("scholar or author", "person of letters"),
    "INSTITUTIONS": ("leader", "holder of power or office"),
    "PUBLIC FIGURE": ("public figure",),
    "SCIENCE & TECHNOLOGY": ("scientist", "scholar", "researcher"),
    "SPORTS": ("athlete", "sports star", "sports champion"),
}
