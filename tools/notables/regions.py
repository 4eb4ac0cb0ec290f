"""Parts of continents, as people speak of them; one country may lie in several."""

from __future__ import annotations

# Region, as it stands after "in": codes of its countries.
_REGIONS = {
    "Latin America": "AR BO BR CL CO CR CU DO EC GT HN HT MX NI PA PE PR PY SV UY VE",
    "the Caribbean": "AG AW BB CU DO HT JM KN LC PR TT VI",
    "Central America": "CR GT HN NI PA SV",
    "the Near East": "EG IL IQ JO LB PS SA SY TR YE",
    "the Middle East": "AE BH EG IL IQ IR JO KW LB OM PS QA SA SY YE",
    "the Arab world": "AE BH DZ EG IQ JO KW LB LY MA OM PS QA SA SD SY TN YE",
    "North Africa": "DZ EG LY MA TN",
    "West Africa": "BF BJ CI CV GH GM GN GW LR ML MR NE NG SL SN TG",
    "East Africa": "BI DJ ER ET KE MG MU RE RW SC SO SS TZ UG",
    "Central Africa": "AO CD CF CG CM GA GQ ST TD",
    "southern Africa": "BW LS MW MZ NA SZ ZA ZM ZW",
    "South Asia": "AF BD BT IN LK MV NP PK",
    "East Asia": "CN HK JP KP KR MN TW",
    "Southeast Asia": "BN ID KH LA MM MY PH SG TH TL VN",
    "Central Asia": "KG KZ TJ TM UZ",
    "the Caucasus": "AM AZ GE",
    "Scandinavia": "DK NO SE",
    "northern Europe": "DK EE FI FO IS LT LV NO SE",
    "eastern Europe": "BG BY HU MD PL RO RU SK UA",
    "the Balkans": "AL BA BG GR HR ME MK RS XK",
    "southern Europe": "ES GI GR IT MT PT",
    "western Europe": "BE FR GB IE JE LU MC NL",
    "central Europe": "AT CH CZ DE HU LI PL SI SK",
    "north-western Europe": "GB IE IM JE",
    "the Pacific": "FM KI NC NR NZ TO VU WS",
}


def regions(code: str) -> tuple[str, ...]:
    """The regions in which a country lies."""
    return tuple(name for name, codes in _REGIONS.items() if code in codes.split())
