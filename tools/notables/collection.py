"""The people as a whole: who shares a field, a place or a year with whom, and who is read most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from notables.facts import Person

_Group = tuple[object, ...]


class Collection:
    """Looks up a person's company. Every answer is in order of page views, most read first."""

    def __init__(self, people: Sequence[Person]) -> None:
        self._groups: dict[_Group, list[Person]] = defaultdict(list)
        self._ranks: dict[str, int] = {}
        ranked: Counter[str] = Counter()
        for person in sorted(people, key=lambda one: (-one.page_views, int(one.id))):
            for group in self._groups_of(person):
                self._groups[group].append(person)
            ranked[person.occupation] += 1
            self._ranks[person.id] = ranked[person.occupation]

    @staticmethod
    def _groups_of(person: Person) -> Iterable[_Group]:
        yield ("field", person.occupation)
        yield ("field and gender", person.occupation, person.gender)
        if person.birth_year is not None:
            yield ("field and decade", person.occupation, person.birth_year // 10)
            yield ("year", person.birth_year)
        if person.country is not None:
            yield ("country", person.country.name)
            yield ("field and country", person.occupation, person.country.name)
            yield ("field and continent", person.occupation, person.continent)
            if person.city is not None:
                yield ("city", person.city, person.country.name)

    def _others(self, person: Person, group: _Group) -> list[Person]:
        return [one for one in self._groups.get(group, ()) if one.id != person.id]

    def of_field(self, person: Person) -> int:
        """How many share the person's occupation, the person included."""
        return len(self._groups[("field", person.occupation)])

    def of_field_and_gender(self, person: Person) -> int:
        """How many share occupation and gender, the person included."""
        return len(self._groups[("field and gender", person.occupation, person.gender)])

    def of_field_and_continent(self, person: Person) -> int:
        """How many share occupation and continent, the person included."""
        return len(self._groups[("field and continent", person.occupation, person.continent)])

    def rank_in_field(self, person: Person) -> int:
        """The person's place by page views among those of the same occupation."""
        return self._ranks[person.id]

    def of_field_and_decade(self, person: Person) -> list[Person]:
        """Others of the same occupation who were born in the same decade."""
        if person.birth_year is None:
            return []
        decade = person.birth_year // 10
        return self._others(person, ("field and decade", person.occupation, decade))

    def of_year(self, person: Person) -> list[Person]:
        """Others born in the same year, whatever they do."""
        if person.birth_year is None:
            return []
        return self._others(person, ("year", person.birth_year))

    def of_city(self, person: Person) -> list[Person]:
        """Others born in the same town, whatever they do."""
        if person.city is None or person.country is None:
            return []
        return self._others(person, ("city", person.city, person.country.name))

    def of_field_and_country(self, person: Person) -> list[Person]:
        """Others of the same occupation who were born in the same country."""
        if person.country is None:
            return []
        return self._others(person, ("field and country", person.occupation, person.country.name))

    def of_country(self, person: Person) -> list[Person]:
        """Others born in the same country."""
        if person.country is None:
            return []
        return self._others(person, ("country", person.country.name))
