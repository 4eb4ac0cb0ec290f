"""Reads Pantheon's table of people, and cleans what its cells leave open or get wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from notables.grammar import HERE, NAMES, year_name

FIXES: dict[str, Any] = yaml.safe_load((HERE / "fixes.yaml").read_text(encoding="utf-8"))
COLUMNS: dict[str, str] = FIXES["columns"]
WITH_ARTICLE = r"^(.*(?:Empire|Republic|Delta|Peninsula)$|(?:Kingdom|County|Region) of)"


def read_people(table: Path) -> pd.DataFrame:
    """Return all people but those left out, in order of their ids; what is unknown is None.

    Raises:
        ValueError: The table lacks a column, has an id twice, or a cell does not fit.
    """
    told = pd.read_csv(
        table, sep="\t", dtype=str, keep_default_na=False, usecols=[*COLUMNS], encoding="utf-8-sig"
    )
    people = told[~told["occupation"].isin(FIXES["left_out"])].rename(columns=COLUMNS)
    people = people.astype(dict.fromkeys(FIXES["numbers"], int))
    people["name"] = people["name"].str.strip().str.replace("`", "'")
    people["code"] = people["name"].map(FIXES["countries"]).fillna(people["code"])
    countries = pd.read_csv(HERE / "countries.csv", keep_default_na=False, index_col="code")
    countries["country"] = countries["place"].str.removeprefix("the ")
    if unknown := {*people["code"]} - {*countries.index, "", "UNK"}:
        raise ValueError(f"The country code {min(unknown)!r} is not in countries.csv.")
    people = people.join(countries, on="code")
    people["gender"] = people["gender"].str.lower()
    year = people["birth_year"].where(~people["birth_year"].isin(FIXES["no_year"]))
    people["birth_year"] = pd.to_numeric(year, errors="coerce").astype("Int64")
    people["decade"] = (people["birth_year"] // 10 * 10).astype("string") + "s"
    people["year"] = people["birth_year"].astype(object).map(year_name, na_action="ignore")
    people["was_there"] = (people["birth_year"] >= people["since"]).fillna(value=False)
    people["continental"] = people["continent"].map(NAMES["continents"])
    people["industry_name"] = people["industry"].map(NAMES["industries"])
    people["domain_name"] = people["domain"].map(NAMES["domains"])
    people["state"] = people["state"].map(NAMES["states"]).where(people["code"] == "US")
    people["city"] = _cities(people)
    people = people.set_index(people["id"].rename(None), verify_integrity=True).sort_index()
    return people.astype(object).where(people.notna(), None)


def _cities(people: pd.DataFrame) -> pd.Series:
    """Return the birthplaces that can stand after "in"; empty if it only repeats the country."""
    cell = people["city"].str.strip()
    city = (
        cell.str.replace(r"\s*\([^)]*\)", "", regex=True).str.split(r"\s*[/,]", regex=True).str[0]
    )
    city = city.str.strip().where(city != people["country"])
    city = city.str.replace(WITH_ARTICLE, r"the \1", regex=True)
    known = people["country"].notna() & ~cell.isin(FIXES["no_city"]) & (city != "")
    return cell.map(FIXES["cities"]).fillna(city).where(known)


def company_of(people: pd.DataFrame) -> Callable[..., list[Any]]:
    """Return what finds all who share some of a person's facts, the most read first."""
    ranked = people.sort_values("page_views", ascending=False, kind="stable")
    rows = {row.id: row for row in ranked.itertuples(index=False)}

    @cache
    def groups(columns: tuple[str, ...]) -> Any:
        return ranked.groupby([*columns])["id"].agg(list).to_dict()

    def company(person: Any, *columns: str) -> list[Any]:
        facts = tuple(getattr(person, column) for column in columns)
        found = groups(columns).get(facts if len(facts) > 1 else facts[0], ())
        return [rows[id_] for id_ in found]

    return company
