"""Names for a year's time, and well-dated events to set a birth against."""

from __future__ import annotations

# First year of a span and its names; where a second tuple follows, it is for births in Europe.
_EPOCHS: tuple[tuple[int, tuple[str, ...], tuple[str, ...]], ...] = (
    (-4000, ("the Bronze Age", "early antiquity", "the ancient world"), ()),
    (-1200, ("early antiquity", "the ancient world"), ("early antiquity", "the Iron Age")),
    (-600, ("antiquity", "the ancient world", "ancient times"), ("classical antiquity",)),
    (250, ("late antiquity", "the last centuries of antiquity"), ()),
    (500, ("the early Middle Ages", "medieval times"), ("the early Middle Ages",)),
    (1000, ("the Middle Ages", "medieval times"), ("the high Middle Ages", "the Middle Ages")),
    (1300, ("the later Middle Ages", "late medieval times"), ("the later Middle Ages",)),
    (1400, ("the time of the Renaissance in Europe",), ("the Renaissance",)),
    (1530, ("early modern times",), ("the late Renaissance", "the age of the Reformation")),
    (1600, ("early modern times", "the age of sail"), ("the age of the Baroque", "the Baroque")),
    (1700, ("the century of the Enlightenment",), ("the Enlightenment", "the age of reason")),
    (1770, ("the age of revolutions",), ("the age of revolutions", "the Romantic age")),
    (1815, ("the early industrial age", "the age of steam"), ("the Romantic age",)),
    (1837, ("the Victorian age", "the age of steam and railways"), ("the industrial age",)),
    (1902, ("the age of the world wars", "the age of radio"), ()),
    (1946, ("the post-war years", "the early years of the Cold War"), ()),
    (1957, ("the space age", "the years of the Cold War", "the age of television"), ()),
    (1991, ("the age of the internet", "the years after the Cold War"), ()),
)

# Each event completes "... years before/after".
EVENTS: tuple[tuple[int, str], ...] = (
    (-776, "the first Olympic Games of tradition"),
    (-490, "the battle of Marathon"),
    (-323, "the death of Alexander the Great"),
    (-44, "the murder of Julius Caesar"),
    (79, "the eruption of Vesuvius that buried Pompeii"),
    (476, "the fall of the last western Roman emperor"),
    (622, "the Hijra from Mecca to Medina"),
    (800, "the coronation of Charlemagne in Rome"),
    (1066, "the battle of Hastings"),
    (1215, "the sealing of Magna Carta"),
    (1347, "the arrival of the Black Death in Europe"),
    (1453, "the Ottoman conquest of Constantinople"),
    (1492, "the first Atlantic crossing of Columbus"),
    (1517, "the start of the Reformation in Wittenberg"),
    (1588, "the defeat of the Spanish Armada"),
    (1618, "the outbreak of the Thirty Years' War"),
    (1687, "the printing of Newton's Principia"),
    (1755, "the great earthquake of Lisbon"),
    (1776, "the American Declaration of Independence"),
    (1789, "the storming of the Bastille"),
    (1815, "the battle of Waterloo"),
    (1848, "the revolutions of 1848"),
    (1859, "the printing of Darwin's Origin of Species"),
    (1869, "the opening of the Suez Canal"),
    (1903, "the first powered flight of the Wright brothers"),
    (1914, "the outbreak of the First World War"),
    (1945, "the end of the Second World War"),
    (1957, "the launch of Sputnik"),
    (1969, "the first landing on the Moon"),
    (1989, "the fall of the Berlin Wall"),
)

# The year since which a country of that name has covered roughly its present ground: earlier
# births were in "present-day" France, and nobody then was "French-born" in today's sense.
_SINCE = {
    "AR": 1853,
    "AU": 1901,
    "BE": 1830,
    "BR": 1822,
    "CA": 1867,
    "CH": 1815,
    "CL": 1818,
    "CN": 1644,
    "DE": 1871,
    "DK": 1500,
    "ES": 1500,
    "FR": 1600,
    "GB": 1707,
    "GR": 1830,
    "HU": 1867,
    "IE": 1922,
    "IN": 1947,
    "IT": 1861,
    "JP": 1600,
    "MX": 1821,
    "NL": 1815,
    "NO": 1814,
    "NZ": 1841,
    "PE": 1821,
    "PL": 1946,
    "PT": 1500,
    "RO": 1862,
    "SE": 1600,
    "TR": 1923,
    "US": 1783,
    "UY": 1830,
    "VE": 1830,
}
_SINCE_ELSEWHERE = 1960
_SINCE_1991 = {
    *("AM", "AZ", "BA", "BY", "CZ", "EE", "ER", "GE", "HR", "KG", "KZ", "LT", "LV", "MD"),
    *("ME", "MK", "NA", "RS", "RU", "SI", "SK", "SS", "TJ", "TL", "TM", "UA", "UZ", "XK"),
}


def epochs(year: int, in_europe: bool) -> tuple[str, ...]:
    """The names under which a year's time goes; Europe has some of its own."""
    found: tuple[str, ...] = ("prehistory",)
    for start, general, european in _EPOCHS:
        if year >= start:
            found = european if in_europe and european else general
    return found


def years_between(earlier: int, later: int) -> int:
    """Years from one to the other; there is no year 0 to count."""
    return later - earlier - (1 if earlier < 0 < later else 0)


def same_name_then(code: str, year: int | None) -> bool:
    """Whether the country of today was there, by its name, in that year."""
    if year is None:
        return False
    if code in _SINCE_1991:
        return year >= 1991
    return year >= _SINCE.get(code, _SINCE_ELSEWHERE)


# Generations of a trade: first and last year of birth, and how one speaks of those born then.
_GENERATIONS: dict[str, tuple[tuple[int, int, str], ...]] = {
    "FILM AND THEATRE": (
        (1860, 1905, "the era of silent film"),
        (1906, 1929, "the first decades of sound film"),
        (1930, 1959, "the decades of colour film and television"),
    ),
    "MUSIC": (
        (1880, 1919, "the years of the gramophone"),
        (1920, 1944, "the first years of rock and roll"),
        (1945, 1969, "the decades of the vinyl record"),
        (1970, 2013, "the years of digital sound"),
    ),
    "INDIVIDUAL SPORTS": ((1946, 1990, "the age of televised sport"),),
    "TEAM SPORTS": ((1946, 1990, "the age of televised sport"),),
    "GOVERNMENT": (
        (1720, 1779, "the age of the American and French revolutions"),
        (1850, 1895, "the years of the First World War"),
        (1896, 1929, "the decades after the Second World War"),
        (1930, 1955, "the end of the Cold War"),
    ),
    "NATURAL SCIENCES": (
        (1780, 1840, "the great age of Victorian science"),
        (1860, 1910, "the years when atoms and genes were first understood"),
        (1911, 1945, "the decades after the Second World War"),
    ),
}


def generation(industry: str, year: int) -> str | None:
    """The time to which a generation of a trade is reckoned."""
    for first, last, name in _GENERATIONS.get(industry, ()):
        if first <= year <= last:
            return name
    return None
