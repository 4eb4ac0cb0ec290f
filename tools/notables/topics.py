"""Topics and their judgements: a person is relevant if the facts fit, whatever the text says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from notables.facts import Person


@dataclass(frozen=True)
class Topic:
    """A query and the facts that make a person relevant to it; what is empty asks for nothing."""

    title: str
    description: str
    occupations: tuple[str, ...] = ()
    industries: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    continents: tuple[str, ...] = ()
    countries: tuple[str, ...] = ()  # by code
    born: tuple[int, int] | None = None  # first and last year of birth
    id: str = ""

    def fits(self, person: Person) -> bool:
        """Whether the person's facts meet every demand of the topic; the unknown meets none."""
        if self.occupations and person.occupation not in self.occupations:
            return False
        if self.industries and person.industry not in self.industries:
            return False
        if self.domains and person.domain not in self.domains:
            return False
        if self.continents and person.continent not in self.continents:
            return False
        if self.countries and (person.country is None or person.country.code not in self.countries):
            return False
        if self.born is not None:
            first, last = self.born
            return person.birth_year is not None and first <= person.birth_year <= last
        return True


# Births whose fortieth year falls in the century of the name.
_18TH = (1661, 1760)
_19TH = (1761, 1860)
_20TH = (1861, 1960)
_ANTIQUITY = (-3499, 499)
_MIDDLE_AGES = (500, 1449)
_NEAR_EAST = ("EG", "IR", "IQ", "SY", "LB", "IL", "PS", "JO", "SA", "YE", "TR")
_SCIENCE = "SCIENCE & TECHNOLOGY"

_TOPICS: tuple[Topic, ...] = (
    # One occupation.
    Topic("physicist", "People known as physicists.", ("PHYSICIST",)),
    Topic("chemist", "People known as chemists.", ("CHEMIST",)),
    Topic("biologist", "People known as biologists.", ("BIOLOGIST",)),
    Topic("mathematician", "People known as mathematicians.", ("MATHEMATICIAN",)),
    Topic("astronomer", "People known as astronomers.", ("ASTRONOMER",)),
    Topic("doctor of medicine", "People known as physicians.", ("PHYSICIAN",)),
    Topic("economist", "People known as economists.", ("ECONOMIST",)),
    Topic("philosopher", "People known as philosophers.", ("PHILOSOPHER",)),
    Topic("writer", "People known as writers.", ("WRITER",)),
    Topic("painter", "People known as painters.", ("PAINTER",)),
    Topic("sculptor", "People known as sculptors.", ("SCULPTOR",)),
    Topic("film director", "People known as film directors.", ("FILM DIRECTOR",)),
    Topic("singer", "People known as singers.", ("SINGER",)),
    Topic("tennis player", "People known as tennis players.", ("TENNIS PLAYER",)),
    Topic("swimmer", "People known as swimmers.", ("SWIMMER",)),
    Topic("astronaut", "People known as astronauts.", ("ASTRONAUT",)),
    Topic("campaigner for rights", "People known as social activists.", ("SOCIAL ACTIVIST",)),
    Topic("diplomat", "People known as diplomats.", ("DIPLOMAT",)),
    Topic("company founder", "People known as businesspeople.", ("BUSINESSPERSON",)),
    Topic("religious leader", "People known as religious figures.", ("RELIGIOUS FIGURE",)),
    Topic("football player", "People known as soccer players.", ("SOCCER PLAYER",)),
    # Several occupations, an industry or a domain.
    Topic(
        "member of a royal or noble house",
        "Nobles, and companions of rulers and other public figures.",
        ("NOBLEMAN", "COMPANION"),
    ),
    Topic(
        "social scientist",
        "People in the social sciences: from economists to psychologists and geographers.",
        industries=("SOCIAL SCIENCES",),
    ),
    Topic(
        "inventor or engineer of computers and machines",
        "Inventors, engineers and computer scientists.",
        ("INVENTOR", "ENGINEER", "COMPUTER SCIENTIST"),
    ),
    Topic(
        "explorer of unknown lands or of space",
        "Explorers and astronauts.",
        industries=("EXPLORERS",),
    ),
    Topic(
        "visual artist",
        "People in the fine arts: painters, sculptors, photographers and other artists.",
        industries=("FINE ARTS",),
    ),
    Topic(
        "winter sports champion",
        "Skiers and skaters.",
        ("SKIER", "SKATER"),
    ),
    Topic(
        "track and field or gymnastics champion",
        "Athletes and gymnasts.",
        ("ATHLETE", "GYMNAST"),
    ),
    Topic(
        "aviator or space traveller",
        "Pilots and astronauts.",
        ("PILOT", "ASTRONAUT"),
    ),
    Topic(
        "journalist or broadcaster",
        "Journalists and presenters.",
        ("JOURNALIST", "PRESENTER"),
    ),
    Topic(
        "scholar of human cultures and their past",
        "Anthropologists and archaeologists.",
        ("ANTHROPOLOGIST", "ARCHAEOLOGIST"),
    ),
    Topic(
        "research in the natural sciences in the 20th century",
        "Natural scientists born 1861 to 1960, so that their fortieth year falls in that century.",
        industries=("NATURAL SCIENCES",),
        born=_20TH,
    ),
    Topic(
        "fashion model or television celebrity",
        "People counted to the media: celebrities, models, presenters, chefs, magicians.",
        industries=("MEDIA PERSONALITY",),
    ),
    # An occupation and a time.
    Topic(
        "astronomer, mathematician or physician from antiquity",
        "People in science and technology born before the year 500.",
        domains=(_SCIENCE,),
        born=_ANTIQUITY,
    ),
    Topic(
        "philosopher or poet of the ancient world",
        "Philosophers, writers and historians born before the year 500.",
        domains=("HUMANITIES",),
        born=_ANTIQUITY,
    ),
    Topic(
        "ruler in antiquity",
        "Politicians, among whom the source counts rulers, born before the year 500.",
        ("POLITICIAN",),
        born=_ANTIQUITY,
    ),
    Topic(
        "religious figure of the Middle Ages",
        "Religious figures born 500 to 1449.",
        ("RELIGIOUS FIGURE",),
        born=_MIDDLE_AGES,
    ),
    Topic(
        "20th century composer or musician",
        "Composers, conductors and musicians born 1861 to 1960, so that their fortieth year "
        "falls in that century.",
        ("COMPOSER", "CONDUCTOR", "MUSICIAN"),
        born=_20TH,
    ),
    Topic(
        "19th century author",
        "Writers born 1761 to 1860, so that their fortieth year falls in that century.",
        ("WRITER",),
        born=_19TH,
    ),
    Topic(
        "18th century ruler",
        "Politicians born 1661 to 1760, so that their fortieth year falls in that century.",
        ("POLITICIAN",),
        born=_18TH,
    ),
    Topic(
        "actor of the silent film era",
        "Actors born 1860 to 1905.",
        ("ACTOR",),
        born=(1860, 1905),
    ),
    Topic(
        "singer or musician born in the 1980s",
        "Musicians and singers born 1980 to 1989.",
        ("MUSICIAN", "SINGER"),
        born=(1980, 1989),
    ),
    Topic(
        "artist of the Renaissance",
        "People in the fine arts born 1400 to 1599.",
        industries=("FINE ARTS",),
        born=(1400, 1599),
    ),
    # An occupation and a place.
    Topic(
        "20th century African politician",
        "Politicians born in Africa 1861 to 1960, so that their fortieth year falls in that "
        "century.",
        ("POLITICIAN",),
        continents=("Africa",),
        born=_20TH,
    ),
    Topic(
        "political leader from South or Central America",
        "Politicians born in South America, Central America, Mexico or the Caribbean.",
        ("POLITICIAN",),
        countries=(
            *("AR", "BO", "BR", "CL", "CO", "EC", "GY", "PE", "PY", "SR", "UY", "VE"),
            *("CR", "CU", "DO", "GT", "HN", "HT", "JM", "MX", "NI", "PA", "SV", "TT"),
        ),
    ),
    Topic(
        "politician from Asia",
        "Politicians, among whom the source counts rulers, born in Asia.",
        ("POLITICIAN",),
        continents=("Asia",),
    ),
    Topic(
        "actor from India, China or Japan",
        "Actors born in one of these countries, Hong Kong included.",
        ("ACTOR",),
        countries=("IN", "CN", "JP", "HK"),
    ),
    Topic(
        "writer from Asia or Africa",
        "Writers born in Asia or Africa.",
        ("WRITER",),
        continents=("Asia", "Africa"),
    ),
    Topic(
        "poet or novelist of the Americas",
        "Writers born in North or South America.",
        ("WRITER",),
        continents=("North America", "South America"),
    ),
    Topic(
        "Australian or New Zealand performer",
        "People in film, theatre and music born in Australia or New Zealand.",
        industries=("FILM AND THEATRE", "MUSIC"),
        countries=("AU", "NZ"),
    ),
    Topic(
        "musician or singer from the Caribbean or Latin America",
        "Musicians and singers born in South America, Central America, Mexico or the Caribbean.",
        ("MUSICIAN", "SINGER"),
        countries=(
            *("AR", "BR", "CL", "CO", "PE", "PY", "UY", "VE"),
            *("BB", "CU", "DO", "HT", "JM", "KN", "MX", "PA", "PR", "TT"),
        ),
    ),
    Topic(
        "scientist from Germany",
        "People in science and technology born in what is now Germany.",
        domains=(_SCIENCE,),
        countries=("DE",),
    ),
    Topic(
        "European politician of the years after the war",
        "Politicians born in Europe since 1910.",
        ("POLITICIAN",),
        continents=("Europe",),
        born=(1910, 2013),
    ),
    Topic(
        "scholar from the Near East or Egypt",
        "People in science, technology and the humanities born between Egypt, Turkey and Iran.",
        domains=(_SCIENCE, "HUMANITIES"),
        countries=_NEAR_EAST,
    ),
    Topic(
        "athlete from Africa",
        "People in sports born in Africa.",
        domains=("SPORTS",),
        continents=("Africa",),
    ),
    Topic(
        "British actor",
        "Actors born in the United Kingdom.",
        ("ACTOR",),
        countries=("GB",),
    ),
    Topic(
        "athlete from Russia or Ukraine",
        "People in sports born in Russia or Ukraine.",
        domains=("SPORTS",),
        countries=("RU", "UA"),
    ),
)

TOPICS: tuple[Topic, ...] = tuple(
    replace(topic, id=f"t{number:02d}") for number, topic in enumerate(_TOPICS, start=1)
)


def judge(people: Sequence[Person]) -> dict[str, list[str]]:
    """The ids of the relevant people, by topic, in the order of the people."""
    return {topic.id: [one.id for one in people if topic.fits(one)] for topic in TOPICS}
