"""Reads Pantheon's table of people and cleans what its cells leave open or get wrong."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from notables.countries import COUNTRIES, US_STATES, Country


class FactsError(Exception):
    """The table cannot be read as Pantheon's; the message is one clear sentence."""


@dataclass(frozen=True)
class Person:
    """One person's cleaned facts; None is what the source does not know."""

    id: str  # the page id in English Wikipedia
    name: str
    gender: str | None  # "female" or "male": the source knows no other value
    birth_year: int | None  # negative before the common era: -384 is 384 BC
    city: str | None
    state: str | None
    country: Country | None
    occupation: str
    industry: str
    domain: str
    languages: int
    page_views: int
    english_views: int

    @property
    def continent(self) -> str | None:
        """The continent of the birthplace."""
        return self.country.continent if self.country else None


# One word that calls somebody an extremist or a criminal, or names work in pornography, is a
# claim that can do harm to the living; the texts here would repeat it without any context.
LEFT_OUT = frozenset({"EXTREMIST", "MAFIOSO", "PORNOGRAPHIC ACTOR"})

# Birthplaces that were looked up under a namesake on another continent: the right country.
_WRONG_PLACE = {
    "Pope Boniface II": "IT",  # Rome in Georgia, United States
    "Babrak Karmal": "AF",  # Kamari on Santorini
    "Francisco Macías Nguema": "GQ",  # Spanish Guinea, filed under Malaysia
    "Yohan Blake": "JM",  # Saint James Parish, filed under France
}

# The oldest year of the table stands for "before any record" (figures of scripture and legend).
_NO_RECORD = -3500

_CITY_NAMES = {
    "Frankfurt (Oder)": "Frankfurt an der Oder",
    "s-Hertogenbosch": "'s-Hertogenbosch",
    "s-Graveland": "'s-Graveland",
    "Washington, D.C.": "Washington, D.C.",
    "Union": None,
    "United Kingdom": None,
    "Other": None,
    "Unknown": None,
    "": None,
}
_WITH_ARTICLE = re.compile(r"(Empire|Republic|Delta|Peninsula)$|^(Kingdom|County|Region) of")

_COLUMNS = (
    "en_curid",
    "name",
    "numlangs",
    "birthcity",
    "birthstate",
    "countryCode",
    "birthyear",
    "gender",
    "occupation",
    "industry",
    "domain",
    "TotalPageViews",
    "PageViewsEnglish",
)


def clean_year(cell: str) -> int | None:
    """The year of birth; None for "Unknown", "530s", "1237?", year 0 and "no record"."""
    if not re.fullmatch(r"-?\d+", cell):
        return None
    year = int(cell)
    return year if year not in (0, _NO_RECORD) else None


def clean_city(cell: str, country: Country | None) -> str | None:
    """The birthplace fit to stand after "in"; None if unknown or no more than the country."""
    cell = cell.strip()
    if cell in _CITY_NAMES:
        return _CITY_NAMES[cell]
    city = re.sub(r"\s*\([^)]*\)", "", cell)
    city = re.split(r"\s*[/,]", city)[0].strip()
    if country and city == country.label:
        return None
    if _WITH_ARTICLE.search(city):
        city = f"the {city}"
    return city or None


def _person(row: dict[str, str]) -> Person:
    name = row["name"].strip().replace("`", "'")
    code = row["countryCode"]
    city = row["birthcity"]
    if name in _WRONG_PLACE:
        code = _WRONG_PLACE[name]
    country = COUNTRIES.get(code)
    if country is None and code not in ("", "UNK"):
        raise FactsError(f"The country code {code!r} of {name} is not in the table of countries.")
    if country is None:
        city = "Unknown"  # a place on no known continent helps nobody
    gender = row["gender"].lower()
    return Person(
        id=row["en_curid"],
        name=name,
        gender=gender if gender in ("female", "male") else None,
        birth_year=clean_year(row["birthyear"]),
        city=clean_city(city, country),
        state=US_STATES.get(row["birthstate"]) if code == "US" else None,
        country=country,
        occupation=row["occupation"],
        industry=row["industry"],
        domain=row["domain"],
        languages=int(row["numlangs"]),
        page_views=int(row["TotalPageViews"]),
        english_views=int(row["PageViewsEnglish"]),
    )


def read_people(table: Path) -> list[Person]:
    """All people of the table except those LEFT_OUT, in the order of their ids."""
    try:
        with table.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, delimiter="\t")
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise FactsError(f"{table} has no column {missing[0]!r}, so it is not Pantheon's.")
            rows = list(reader)
    except OSError as error:
        raise FactsError(f"{table} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise FactsError(f"{table} is not UTF-8 text.") from error
    people: dict[str, Person] = {}
    for number, row in enumerate(rows, start=2):
        if row["occupation"] in LEFT_OUT:
            continue
        try:
            person = _person(row)
        except (ValueError, TypeError, AttributeError) as error:
            raise FactsError(f"Line {number} of {table} has a cell that does not fit.") from error
        if person.id in people:
            raise FactsError(f"The id {person.id} occurs twice in {table}.")
        people[person.id] = person
    return sorted(people.values(), key=lambda person: int(person.id))
