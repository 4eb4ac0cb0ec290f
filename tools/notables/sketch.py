"""One person's text in the making: the facts, the choices made once per text, and short phrases."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from notables.collection import Collection
from notables.countries import CONTINENT_ADJECTIVES
from notables.eras import same_name_then
from notables.facts import Person
from notables.grammar import Voice, listing, year_name
from notables.occupations import OCCUPATIONS, Occupation

# How often a text says "woman" or "man" outright, refers by pronoun, and uses the plain noun of
# the occupation. The same for everybody: a text's gender words must not depend on the gender.
_SHARE_EXPLICIT = 1 / 3
_SHARE_PRONOUNS = 0.8
_SHARE_PLAIN = 0.6

_GENDER_WORDS = {"female": ("female", "woman", "women"), "male": ("male", "man", "men")}


def _short_noun(job: Occupation, plain: bool) -> str:
    """A noun fit to follow "this": the plain one or a wider one, but no choice between two."""
    nouns = (job.noun, *job.also) if plain else job.also
    return next((noun for noun in nouns if " or " not in noun), job.noun)


@dataclass(frozen=True)
class Sketch:
    """What every sentence maker needs."""

    person: Person
    all: Collection
    job: Occupation
    voice: Voice
    random: Random
    explicit: bool  # says the gender in words, not by pronoun alone
    plain: bool  # uses the plain noun of the occupation, not just wider words
    crafts: tuple[str, ...]  # phrases for the work: the first opens, the others may follow

    @classmethod
    def of(cls, person: Person, people: Collection) -> Sketch:
        """The sketch of a person; all chance in it derives from the person's id."""
        seed = hashlib.sha256(f"notables:{person.id}".encode()).digest()
        random = Random(int.from_bytes(seed, "big"))  # noqa: S311 - chance that repeats is meant
        explicit = person.gender is not None and random.random() < _SHARE_EXPLICIT
        plain = random.random() < _SHARE_PLAIN
        job = OCCUPATIONS[person.occupation]
        if person.gender is not None and random.random() < _SHARE_PRONOUNS:
            voice = Voice.pronouns(person.gender)
        else:
            name = person.name.split(",")[0]
            subject = name if random.random() < 0.5 else f"this {_short_noun(job, plain)}"
            voice = Voice.naming(subject, name)
        crafts = tuple(random.sample(job.craft, len(job.craft)))
        return cls(person, people, job, voice, random, explicit, plain, crafts)

    def pick(self, *choices: str) -> str:
        """One of the phrases."""
        return self.random.choice(choices)

    def words(self, number: int) -> str:
        """That many words of the field, as a list."""
        return listing(self.random.sample(self.job.words, min(number, len(self.job.words))))

    @property
    def adjective(self) -> str:
        """female, male."""
        return _GENDER_WORDS[self.person.gender or ""][0]

    @property
    def singular(self) -> str:
        """woman, man."""
        return _GENDER_WORDS[self.person.gender or ""][1]

    @property
    def plural(self) -> str:
        """women, men."""
        return _GENDER_WORDS[self.person.gender or ""][2]

    def noun(self) -> str:
        """A noun for the person's occupation: the plain one or, in oblique texts, a wider one."""
        return self.job.noun if self.plain else self.random.choice(self.job.also)

    def country_then(self) -> str | None:
        """The country, as "present-day" where the birth precedes it."""
        country = self.person.country
        if country is None:
            return None
        if same_name_then(country.code, self.person.birth_year):
            return country.name
        now = self.pick("present-day", "today's", "what is now")
        return f"{now} {country.name if now == 'what is now' else country.label}"

    def place(self) -> str | None:
        """The birthplace after "in": town, state and country as far as known."""
        country = self.country_then()
        if country is None:
            return None
        town = self.person.city
        if town is None:
            return country
        if self.person.state and self.person.state != town:
            return f"{town}, {self.person.state}"
        apart = country.startswith(("what", "today")) or self.random.random() < 0.5
        return f"{town} in {country}" if apart else f"{town}, {country.removeprefix('the ')}"

    def born(self) -> str | None:
        """Birth as in "born in 1867 in Warsaw, present-day Poland", as far as known."""
        year = self.person.birth_year
        place = self.place()
        when = f"in {year_name(year)}" if year is not None else None
        parts = [part for part in (when, f"in {place}" if place else None) if part]
        if not parts:
            return None
        self.random.shuffle(parts)
        return f"born {' '.join(parts)}"

    def native_adjective(self) -> str | None:
        """Polish-born or African-born: never by a country that was not there yet."""
        country = self.person.country
        if country is None:
            return None
        if same_name_then(country.code, self.person.birth_year) and self.random.random() < 0.6:
            return f"{country.adjective}-born"
        return f"{CONTINENT_ADJECTIVES[country.continent]}-born"

    def other(self, person: Person) -> str:
        """Another person with the occupation before the name: "the chemist Marie Curie"."""
        return f"the {OCCUPATIONS[person.occupation].noun} {person.name}"
