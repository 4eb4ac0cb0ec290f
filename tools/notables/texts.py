"""Writes the text about a person: some of the facts, a sentence each.

A sentence says only what follows from the facts of the table or holds for an occupation as such.
"is known" holds for the living and the dead alike, which the facts do not tell apart. All chance in
a text derives from the person's id, so the order of the draws is part of the corpus.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

from notables import grammar
from notables.grammar import HERE, NAMES

SENTENCES: dict[str, Any] = yaml.safe_load((HERE / "sentences.yaml").read_text(encoding="utf-8"))
OCCUPATIONS: dict[str, Any] = yaml.safe_load((HERE / "occupations.yaml").read_text("utf-8"))
MAX_WORDS = 180
# How often a text says "woman" or "man" outright, refers by pronoun, and uses the plain noun of
# the occupation. The same for everybody: a text's gender words must not depend on the gender.
EXPLICIT, PRONOUNS, PLAIN = 1 / 3, 0.8, 0.6


class PersonText:
    """The text about one person in the making.

    Args:
        person: Their facts.
        company: Finds those who share some of them, the most read first.
    """

    def __init__(self, person: Any, company: Callable[..., list[Any]]) -> None:
        seed = hashlib.sha256(f"notables:{person.id}".encode()).digest()
        self.random = Random(int.from_bytes(seed, "big"))  # noqa: S311 - chance that repeats is meant
        self.person, self.company, self.job = person, company, OCCUPATIONS[person.occupation]
        self.year = person.birth_year
        self.explicit = person.gender is not None and self.by_chance(EXPLICIT)
        self.plain = self.by_chance(PLAIN)
        voice = self.voice()
        self.crafts = self.random.sample(self.job["craft"], len(self.job["craft"]))
        self.facts = person._asdict() | self.job | NAMES["genders"].get(person.gender, {}) | voice

    def voice(self) -> dict[str, str]:
        """Draw how the text refers to its person once the name has been given."""
        if self.person.gender is not None and self.by_chance(PRONOUNS):
            return dict(NAMES["pronouns"][self.person.gender])
        name = self.person.name.split(",")[0]
        nouns = [*[self.job["noun"]] * self.plain, *self.job["also"], self.job["noun"]]
        short = next(noun for noun in nouns if " or " not in noun)
        subject = name if self.by_chance(0.5) else f"this {short}"
        return {"she": subject, "her": name, "hers": f"{name}'" + "s" * (not name.endswith("s"))}

    def by_chance(self, share: float) -> bool:
        """Draw what happens in a share of the texts."""
        return self.random.random() < share

    def say(self, *kinds: str, **more: Any) -> str:
        """Draw one of the sentences of these kinds, and fill the facts in."""
        forms = [form for kind in kinds for form in SENTENCES[kind]]
        form = self.random.choice(forms) if len(forms) > 1 else forms[0]
        return str(form.format_map(self.facts | more))

    def others(self, most: int, *columns: str) -> list[str]:
        """Draw the names of a few of the better-known ones who share these facts."""
        found = [it for it in self.company(self.person, *columns) if it.id != self.person.id]
        few = self.random.sample(found[: 4 * most], min(most, len(found)))
        nouns = {} if "occupation" in columns else OCCUPATIONS
        return [f"the {nouns[it.occupation]['noun']} {it.name}" if nouns else it.name for it in few]

    def country_then(self) -> str:
        """Return the country, as "present-day" where the birth precedes it."""
        if self.person.was_there:
            return str(self.person.place)
        now = self.random.choice(("present-day", "today's", "what is now"))
        return f"{now} {self.person.place if now == 'what is now' else self.person.country}"

    def place(self) -> str:
        """Return the birthplace after "in": town, state and country as far as known."""
        country, town, state = self.country_then(), self.person.city, self.person.state
        if town is None:
            return country
        if state and state != town:
            return f"{town}, {state}"
        apart = country.startswith(("what", "today")) or self.by_chance(0.5)
        return f"{town} in {country}" if apart else f"{town}, {country.removeprefix('the ')}"

    def born(self) -> str:
        """Return "born in 1867 in Warsaw, present-day Poland", as far as known."""
        place = self.place() if self.person.country else None
        parts = [f"in {it}" for it in (self.person.year, place) if it]
        self.random.shuffle(parts)
        return " ".join(["born", *parts]) if parts else ""

    def native(self) -> str:
        """Return Polish-born or African-born: never by a country that was not there yet."""
        named = self.person.was_there and self.by_chance(0.6)
        name = self.person.adjective if named else self.person.continental
        return f"{name}-born" if name else ""

    # The sentences; what has nothing to say is None.

    def opening(self) -> str:
        """Name the person and what they are known for."""
        noun = self.job["noun"] if self.plain else self.random.choice(self.job["also"])
        if self.explicit and self.by_chance(0.5):
            noun = f"{self.facts['female']} {noun}"
        native = self.native()
        described = f"{native} {noun}" if native and self.by_chance(0.6) else noun
        born = self.born()
        kinds = ["opening", *["opening_born"] * bool(born), *["opening_plain"] * self.plain]
        more = {"born": born, "comma": f", {born}," if born else "", "craft": self.crafts[0]}
        return self.say(*kinds, described=grammar.with_article(described), **more)

    def birth(self) -> str | None:
        """Say when and where."""
        return self.say("birth", born=born) if (born := self.born()) else None

    def continent(self) -> str:
        """Say the continent, by name or adjective."""
        count = len(self.company(self.person, "occupation", "continent"))
        kinds = ["continent", *["continent_plain"] * (self.plain and count > 1)]
        return self.say(*kinds, count=grammar.count_word(count))

    def region(self) -> str | None:
        """Say the part of the continent."""
        regions = [name for name, of in NAMES["regions"].items() if self.person.code in of]
        return self.say("region", region=self.random.choice(regions)) if regions else None

    def time(self) -> str:
        """Say the century of the birth and the name of its age."""
        (*_, span) = (it for it in NAMES["epochs"] if it["since"] <= self.year)
        european = self.person.continent == "Europe" and span.get("in_europe")
        epoch = self.random.choice(european or span["names"])
        century = grammar.century_name(self.year, self.by_chance(0.4))
        kind = "decade" if self.year >= 1700 and self.by_chance(0.35) else "time"
        return self.say(kind, century=century, epoch=epoch)

    def generation(self) -> str | None:
        """Say the time that people of this trade and age are reckoned to."""
        trade = NAMES["generations"].get(self.person.industry, ())
        found = [it["name"] for it in trade if it["born"][0] <= self.year <= it["born"][1]]
        return self.say("generation", generation=found[0]) if found else None

    def adult_years(self) -> str | None:
        """Say the century into which the middle of a long life would fall."""
        middle = self.year + 40 + (self.year < 0 <= self.year + 40)
        if self.year > 1970:
            return None
        return self.say("adult_years", century=grammar.century_name(middle, self.by_chance(0.3)))

    def event(self) -> str:
        """Say the distance of the birth from a well-dated event."""
        near = sorted(NAMES["events"], key=lambda it: abs(it["year"] - self.year))[:3]
        when, what = self.random.choice(near).values()
        # There is no year 0 to count.
        count = abs(when - self.year) - (min(when, self.year) < 0 < max(when, self.year))
        years = f"{grammar.count_word(count)} year{'s' * (count != 1)}" if count else ""
        order = "before" if self.year < when else "after"
        return self.say("event" if count else "same_event", years=years, order=order, what=what)

    def craft(self) -> str:
        """Say what the work is, in general words."""
        return self.say("craft", craft=self.random.choice(self.crafts[1:]))

    def words(self) -> str:
        """Say some words of the field."""
        draws = [self.random.sample(self.job["words"], number) for number in (2, 3, 3, 4, 2)]
        (first, last), *lists = draws
        listed = dict(zip("abcd", map(grammar.listing, lists), strict=True))
        return self.say("words", first=first, last=last, **listed)

    def saying(self) -> str:
        """Say something general of the occupation."""
        return str(self.random.choice(self.job["says"]))

    def discipline(self) -> str:
        """Say where the source's scheme of occupations puts the field."""
        if self.by_chance(0.45):
            wide = self.random.choice(NAMES["domain_nouns"][self.person.domain])
            return self.say("wide", wide=grammar.with_article(wide))
        same = (self.person.domain_name, self.job["field"])
        return self.say("same_discipline" if self.person.industry_name in same else "discipline")

    def readers(self) -> str:
        """Say how often the person was read about, in round numbers."""
        views = self.person.page_views
        millions = f"{views / 1e6:.1f}".removesuffix(".0")
        number = f"{millions} million" if views >= 1_000_000 else f"{round(views, -3):,}"
        fame = "widely read" if views >= 4_000_000 else "known, if not among the most read"
        return self.say("readers", number=number, fame=fame)

    def english(self) -> str | None:
        """Say whether the readers came mostly in English."""
        share = self.person.english_views / max(1, self.person.page_views)
        kind = "mostly_english" if share > 0.6 else "hardly_english"
        return None if 0.25 <= share <= 0.6 else self.say(kind)

    def rank(self) -> str | None:
        """Say the place by page views within the occupation."""
        ids = [it.id for it in self.company(self.person, "occupation")]
        place, is_told = ids.index(self.person.id) + 1, self.plain and len(ids) >= 5
        if is_told and (place <= 20 or self.by_chance(0.3)):
            kind = "rank" if place > 1 else "first_rank"
            return self.say(kind, place=grammar.ordinal(place), total=f"{len(ids):,}")
        return None

    def same_decade(self) -> str | None:
        """Name people of the same occupation and age."""
        others = self.others(2, "occupation", "decade")
        if not others:
            return None
        kinds = "one_of_decade" if len(others) == 1 else "some_of_decade", "same_decade"
        kind = kinds[0] if self.plain and self.by_chance(0.4) else kinds[1]
        when = f"the {self.person.decade}" if self.year >= 1700 else "the same decade"
        return self.say(kind, when=when, names=grammar.listing(others))

    def beside(self, kind: str, most: int, *columns: str) -> str | None:
        """Name others who share these facts, and say how many do."""
        others = self.others(most, *columns)
        count = grammar.count_word(len(others and self.company(self.person, *columns)) or 1)
        return self.say(kind, names=grammar.listing(others), count=count) if others else None

    def gender(self) -> str:
        """Say the gender in words; asked for in explicit texts, by the same rule for all."""
        count = len(self.company(self.person, "occupation", "gender"))
        kinds, then = ["gender", "gender_of_many" if count > 1 else "gender_of_one"], ""
        if self.person.country:
            kinds, then = [*kinds, "gender_from"], self.country_then()
        group = self.job["plural"] if self.plain else f"names in {self.job['field']}"
        return self.say(*kinds, count=grammar.count_word(count), group=group, then=then)

    def made(self, kind: str) -> str | None:
        """Return a sentence of a kind, if the facts that it needs are known."""
        if getattr(self.person, SENTENCES["needs"].get(kind, "id")) is None:
            return None
        if kind in SENTENCES["company"]:
            return self.beside(kind, *SENTENCES["company"][kind])
        return getattr(self, kind)() if hasattr(self, kind) else self.say(kind)

    def write(self) -> str:
        """Return the text; there is more to say of those read in many languages."""
        aim = int(self.random.triangular(36, 130, 60)) + min(40, self.person.languages // 4)
        lines = [grammar.sentence(self.opening())]
        keys = {kind: self.random.random() ** (1 / w) for kind, w in SENTENCES["weights"].items()}
        kinds = sorted(keys, key=lambda kind: -keys[kind])
        if "born in" not in lines[0].lower():
            kinds.insert(0, "birth")
        if self.explicit:
            kinds.insert(self.random.randrange(4), "gender")
        if self.by_chance(0.3):
            kinds.insert(self.random.randrange(3, 8), "saying")
        for kind in [*kinds, "saying", "words", "craft", "languages"]:
            made = self.made(kind)
            count = len(" ".join([*lines, made or ""]).split())
            if made and count <= MAX_WORDS:
                lines += [line for line in [grammar.sentence(made)] if line not in lines]
                if count >= aim:
                    break
        return " ".join(lines)
