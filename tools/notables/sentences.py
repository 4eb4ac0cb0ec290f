"""The sentences: each maker turns some of the facts into one sentence, or has nothing to say.

A maker states only what follows from the facts of the table or holds for an occupation as such.
"is known" holds for the living and the dead alike, which the facts do not tell apart.
"""

from __future__ import annotations

from collections.abc import Callable

from notables.countries import CONTINENT_ADJECTIVES
from notables.eras import EVENTS, epochs, generation, years_between
from notables.facts import Person
from notables.grammar import (
    century_name,
    count_word,
    listing,
    ordinal,
    with_article,
    year_name,
)
from notables.occupations import DOMAIN_NOUNS, DOMAINS, INDUSTRIES
from notables.regions import regions
from notables.sketch import Sketch

Maker = Callable[[Sketch], str | None]


def opening(s: Sketch) -> str:
    """Names the person and what the person is known for."""
    name = s.person.name
    noun = s.noun()
    if s.explicit and s.random.random() < 0.5:
        noun = f"{s.adjective} {noun}"
    native = s.native_adjective()
    described = with_article(f"{native} {noun}" if native and s.random.random() < 0.6 else noun)
    craft = s.crafts[0]
    born = s.born()
    comma = f", {born}," if born else ""
    forms = [
        f"{name} is known as {described}",
        f"{name}{comma} is known for {craft}",
        f"{name}{comma} made a name as {described}",
        f"Known for {craft}, {name} is listed here as {described}",
    ]
    if born:
        forms.append(f"{born}, {name} became known as {described}")
        forms.append(f"{name} was {born} and became known for {craft}")
    if s.plain:
        forms.append(f"the name of {name} stands among those of well-known {s.job.plural}")
    return s.random.choice(forms)


def birth(s: Sketch) -> str | None:
    """When and where."""
    born = s.born()
    return born and f"{s.voice.subject} was {born}"


def continent(s: Sketch) -> str | None:
    """The continent, by name or adjective."""
    if s.person.continent is None:
        return None
    adjective = CONTINENT_ADJECTIVES[s.person.continent]
    forms = [
        f"by birthplace {s.voice.subject} is counted as {adjective}",
        f"{s.voice.possessive} life began in {s.person.continent}",
        f"{s.voice.subject} comes from {s.person.continent} by birth",
        f"the map puts {s.voice.possessive} birthplace in {s.person.continent}",
    ]
    count = s.all.of_field_and_continent(s.person)
    if s.plain and count > 1:
        group = f"{adjective} {s.job.plural} gathered here"
        forms.append(f"{s.voice.subject} is one of {count_word(count)} {group}")
    return s.random.choice(forms)


def region(s: Sketch) -> str | None:
    """The part of the continent."""
    names = regions(s.person.country.code) if s.person.country else ()
    if not names:
        return None
    name = s.pick(*names)
    return s.pick(
        f"{s.voice.possessive} birthplace lies in {name}",
        f"{s.voice.subject} is one of the names that {name} has given to {s.job.field}",
        f"{s.voice.subject} comes from {name}",
    )


def time(s: Sketch) -> str | None:
    """The century of the birth and the name of its age."""
    year = s.person.birth_year
    if year is None:
        return None
    epoch = s.pick(*epochs(year, s.person.continent == "Europe"))
    name = century_name(year, in_words=s.random.random() < 0.4)
    if year >= 1700 and s.random.random() < 0.35:
        decade = f"{year // 10 * 10}s"
        return s.pick(
            f"{s.voice.subject} was born in the {decade}, in {epoch}",
            f"the {decade} were the decade of {s.voice.possessive} birth",
        )
    return s.pick(
        f"{s.voice.possessive} birth falls in {epoch}, in the {name}",
        f"a child of the {name}, {s.voice.subject} was born in {epoch}",
        f"{s.voice.subject} was born in the {name}",
        f"the years around {s.voice.possessive} birth belong to {epoch}",
    )


def adult_years(s: Sketch) -> str | None:
    """The century into which the middle of a long life would fall."""
    year = s.person.birth_year
    if year is None or year > 1970:
        return None
    middle = year + 40
    if year < 0 <= middle:
        middle += 1
    name = century_name(middle, in_words=s.random.random() < 0.3)
    return s.pick(
        f"counted from that birth, the middle of life falls in the {name}",
        f"the age of forty would belong to the {name}",
        f"by the dates, this is a life for the annals of the {name}",
    )


def trade_generation(s: Sketch) -> str | None:
    """The time that people of this trade and age are reckoned to."""
    year = s.person.birth_year
    name = generation(s.person.industry, year) if year is not None else None
    if name is None:
        return None
    return s.pick(
        f"by age, {s.voice.subject} belongs to {name}",
        f"people in {s.job.field} who were born around then are often placed in {name}",
    )


def event(s: Sketch) -> str | None:
    """The distance of the birth from a well-dated event."""
    year = s.person.birth_year
    if year is None:
        return None
    near = sorted(EVENTS, key=lambda one: abs(one[0] - year))[:3]
    when, what = s.random.choice(near)
    if when == year:
        return f"{s.voice.possessive} birth falls in the year of {what}"
    before = year < when
    count = years_between(year, when) if before else years_between(when, year)
    years = f"{count_word(count)} {'year' if count == 1 else 'years'}"
    order = "before" if before else "after"
    return s.pick(
        f"{s.voice.possessive} birth came {years} {order} {what}",
        f"{s.voice.subject} was born {years} {order} {what}",
    )


def craft(s: Sketch) -> str:
    """The work in general words."""
    phrase = s.pick(*s.crafts[1:])
    return s.pick(
        f"{s.voice.possessive} name is linked with {phrase}",
        f"readers connect {s.voice.objective} with {phrase}",
        f"{s.voice.possessive} place in the record rests on {phrase}",
        f"those who look {s.voice.objective} up are mostly after {s.job.field}",
    )


def words(s: Sketch) -> str:
    """Some words of the field."""
    first, last = s.random.sample(s.job.words, 2)
    return s.pick(
        f"around {s.job.field} one meets {s.words(3)}",
        f"{s.words(3)} all have their place in {s.job.field}",
        f"{s.words(4)}: such are the themes of {s.job.field}",
        f"{s.voice.possessive} field has a vocabulary of its own, from {first} to {last}",
        f"whoever reads about {s.job.field} will come across {s.words(2)}",
    )


def saying(s: Sketch) -> str:
    """A general sentence on the occupation."""
    return s.random.choice(s.job.says)


def discipline(s: Sketch) -> str:
    """Where the source's scheme of occupations puts the field."""
    industry = INDUSTRIES[s.person.industry]
    domain = DOMAINS[s.person.domain]
    if s.random.random() < 0.45:
        wide = s.pick(*DOMAIN_NOUNS[s.person.domain])
        return s.pick(
            f"in the widest sense {s.voice.subject} may be called {with_article(wide)}",
            f"{with_article(wide)} in a wide sense, {s.voice.subject} has a place in {domain}",
        )
    if industry in (domain, s.job.field):
        return f"the field counts as part of {domain}"
    return s.pick(
        f"{s.voice.possessive} occupation falls under {industry}, within {domain}",
        f"in a list of {domain}, {s.voice.subject} would stand under {industry}",
        f"{s.voice.subject} belongs to {industry} in the wider sense",
        f"within {domain}, this is a name from {industry}",
    )


def languages(s: Sketch) -> str:
    """In how many languages an encyclopedia has the person."""
    count = s.person.languages
    return s.pick(
        f"articles about {s.voice.objective} exist in {count} language editions of Wikipedia",
        f"one can read about {s.voice.objective} in {count} languages",
        f"{count} languages have an encyclopedia article on {s.voice.objective}",
    )


def readers(s: Sketch) -> str:
    """How often the person was read about, in round numbers."""
    views = s.person.page_views
    if views >= 1_000_000:
        number = f"{views / 1_000_000:.1f}".removesuffix(".0") + " million"
    else:
        number = f"{round(views, -3):,}"
    return s.pick(
        f"between 2008 and 2013 {s.voice.possessive} pages were opened about {number} times",
        f"readers called up {s.voice.possessive} pages some {number} times in six years",
        f"about {number} page views make {s.voice.objective} "
        + ("widely read" if views >= 4_000_000 else "known, if not among the most read"),
    )


def english(s: Sketch) -> str | None:
    """Whether the readers came mostly in English."""
    share = s.person.english_views / max(1, s.person.page_views)
    if share > 0.6:
        return f"most of those readers chose English, not another language, for {s.voice.objective}"
    if share < 0.25:
        return f"three readers in four or more met {s.voice.objective} in a language but English"
    return None


def rank(s: Sketch) -> str | None:
    """The place by page views within the occupation."""
    place = s.all.rank_in_field(s.person)
    total = s.all.of_field(s.person)
    if not s.plain or total < 5:
        return None
    if place == 1:
        return f"no {s.job.noun} gathered here is read about more often"
    if place <= 20 or s.random.random() < 0.3:
        return (
            f"by page views {s.voice.subject} is the {ordinal(place)} most read of "
            f"{total:,} {s.job.plural} here"
        )
    return None


def _few(s: Sketch, people: list[Person], most: int) -> list[Person]:
    """A few of the better-known ones."""
    pool = people[: 4 * most]
    return s.random.sample(pool, min(most, len(pool)))


def same_field_and_decade(s: Sketch) -> str | None:
    """People of the same occupation and age."""
    others = [one.name for one in _few(s, s.all.of_field_and_decade(s.person), 2)]
    if not others:
        return None
    names = listing(others)
    if s.plain and s.random.random() < 0.4:
        count = "another" if len(others) == 1 else "other"
        noun = s.job.noun if len(others) == 1 else s.job.plural
        year = s.person.birth_year or 0
        decade = f"the {year // 10 * 10}s" if year >= 1700 else "the same decade"
        return f"{count} {noun} born in {decade}: {names}"
    return s.pick(
        f"{s.voice.possessive} field and decade of birth are also those of {names}",
        f"in age and field, {names} can be set beside {s.voice.objective}",
    )


def same_field_and_country(s: Sketch) -> str | None:
    """People of the same occupation from the same country."""
    country = s.person.country
    others = [one.name for one in _few(s, s.all.of_field_and_country(s.person), 2)]
    if not others or country is None:
        return None
    names = listing(others)
    return s.pick(
        f"the same country and the same field lead also to {names}",
        f"like {names}, {s.voice.subject} stands here for {s.job.field} from {country.name}",
    )


def same_city(s: Sketch) -> str | None:
    """Others from the same town, with what they are known as."""
    others = _few(s, s.all.of_city(s.person), 2)
    if not others:
        return None
    return s.pick(
        f"{s.person.city} is also the birthplace of {listing([s.other(one) for one in others])}",
        f"from {s.person.city} came {listing([s.other(one) for one in others])} as well",
    )


def same_year(s: Sketch) -> str | None:
    """Others of the same year, with what they are known as."""
    year = s.person.birth_year
    others = _few(s, s.all.of_year(s.person), 2)
    if not others or year is None:
        return None
    names = listing([s.other(one) for one in others])
    return s.pick(
        f"{year_name(year)} was also the birth year of {names}",
        f"{s.voice.subject} shares a birth year with {names}",
    )


def compatriots(s: Sketch) -> str | None:
    """How many of the collection come from the country, and somebody from another field."""
    country = s.person.country
    others = s.all.of_country(s.person)
    if country is None or not others:
        return None
    one = _few(s, others, 1)[0]
    count = len(others) + 1
    return s.pick(
        f"{count_word(count)} people in this collection were born in {country.name}, "
        f"among them {s.other(one)}",
        f"{country.name} has {count_word(count)} names here, {s.other(one)} being another of them",
    )


def gender(s: Sketch) -> str:
    """The gender in words; asked for in the texts that are explicit, by the same rule for all."""
    count = s.all.of_field_and_gender(s.person)
    forms = [
        f"{s.voice.subject} is entered in the record as {with_article(s.singular)}",
        f"the record lists {s.voice.objective} as {s.adjective}",
    ]
    if count > 1:
        group = s.job.plural if s.plain else f"names in {s.job.field}"
        forms.append(
            f"{s.voice.subject} is one of {count_word(count)} {s.plural} among the {group} here"
        )
    else:
        forms.append(f"{s.voice.subject} is the only {s.singular} listed here for {s.job.field}")
    if s.person.country:
        forms.append(
            f"this is the short record of {with_article(s.singular)} from {s.country_then()}"
        )
    return s.random.choice(forms)


# What a text may go on with after its opening, and how readily it does.
BODY: tuple[tuple[Maker, float], ...] = (
    (continent, 2.4),
    (region, 0.9),
    (time, 2.0),
    (trade_generation, 1.0),
    (adult_years, 1.0),
    (event, 0.8),
    (craft, 1.3),
    (words, 1.6),
    (saying, 1.8),
    (discipline, 1.3),
    (languages, 1.0),
    (readers, 0.7),
    (english, 0.3),
    (rank, 0.5),
    (same_field_and_decade, 0.8),
    (same_field_and_country, 0.7),
    (same_city, 0.6),
    (same_year, 0.6),
    (compatriots, 0.6),
)
