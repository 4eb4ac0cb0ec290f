"""Countries as the facts code them: name in a sentence, adjective, and one continent each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Country:
    """A present-day country or territory."""

    code: str  # ISO 3166-1, as the source has it
    name: str  # as it stands after "in", so with "the" where English wants it
    adjective: str
    continent: str

    @property
    def label(self) -> str:
        """The name alone, as a field value."""
        return self.name.removeprefix("the ")


CONTINENT_ADJECTIVES = {
    "Africa": "African",
    "Asia": "Asian",
    "Europe": "European",
    "North America": "North American",
    "Oceania": "Oceanian",
    "South America": "South American",
}

# code|name|adjective, by continent. Three territories that the source counts to the continent
# of the state they belong to (New Caledonia, Réunion) or mistakes (São Tomé) stand where the
# map has them.
_TABLE = {
    "Africa": """
AO|Angola|Angolan
BF|Burkina Faso|Burkinabe
BI|Burundi|Burundian
BJ|Benin|Beninese
BW|Botswana|Botswanan
CD|the Democratic Republic of the Congo|Congolese
CF|the Central African Republic|Central African
CG|the Republic of the Congo|Congolese
CI|Ivory Coast|Ivorian
CM|Cameroon|Cameroonian
CV|Cape Verde|Cape Verdean
DJ|Djibouti|Djiboutian
DZ|Algeria|Algerian
EG|Egypt|Egyptian
ER|Eritrea|Eritrean
ET|Ethiopia|Ethiopian
GA|Gabon|Gabonese
GH|Ghana|Ghanaian
GM|the Gambia|Gambian
GN|Guinea|Guinean
GQ|Equatorial Guinea|Equatoguinean
GW|Guinea-Bissau|Bissau-Guinean
KE|Kenya|Kenyan
LR|Liberia|Liberian
LS|Lesotho|Basotho
LY|Libya|Libyan
MA|Morocco|Moroccan
MG|Madagascar|Malagasy
ML|Mali|Malian
MR|Mauritania|Mauritanian
MU|Mauritius|Mauritian
MW|Malawi|Malawian
MZ|Mozambique|Mozambican
NA|Namibia|Namibian
NE|Niger|Nigerien
NG|Nigeria|Nigerian
RE|Réunion|Réunionese
RW|Rwanda|Rwandan
SC|Seychelles|Seychellois
SD|Sudan|Sudanese
SL|Sierra Leone|Sierra Leonean
SN|Senegal|Senegalese
SO|Somalia|Somali
SS|South Sudan|South Sudanese
ST|São Tomé and Príncipe|São Toméan
SZ|Swaziland|Swazi
TD|Chad|Chadian
TG|Togo|Togolese
TN|Tunisia|Tunisian
TZ|Tanzania|Tanzanian
UG|Uganda|Ugandan
ZA|South Africa|South African
ZM|Zambia|Zambian
ZW|Zimbabwe|Zimbabwean
""",
    "Asia": """
AE|the United Arab Emirates|Emirati
AF|Afghanistan|Afghan
AM|Armenia|Armenian
AZ|Azerbaijan|Azerbaijani
BD|Bangladesh|Bangladeshi
BH|Bahrain|Bahraini
BN|Brunei|Bruneian
BT|Bhutan|Bhutanese
CN|China|Chinese
CY|Cyprus|Cypriot
GE|Georgia|Georgian
HK|Hong Kong|Hong Kong
ID|Indonesia|Indonesian
IL|Israel|Israeli
IN|India|Indian
IQ|Iraq|Iraqi
IR|Iran|Iranian
JO|Jordan|Jordanian
JP|Japan|Japanese
KG|Kyrgyzstan|Kyrgyz
KH|Cambodia|Cambodian
KP|North Korea|North Korean
KR|South Korea|South Korean
KW|Kuwait|Kuwaiti
KZ|Kazakhstan|Kazakh
LA|Laos|Laotian
LB|Lebanon|Lebanese
LK|Sri Lanka|Sri Lankan
MM|Myanmar|Burmese
MN|Mongolia|Mongolian
MV|the Maldives|Maldivian
MY|Malaysia|Malaysian
NP|Nepal|Nepalese
OM|Oman|Omani
PH|the Philippines|Philippine
PK|Pakistan|Pakistani
PS|Palestine|Palestinian
QA|Qatar|Qatari
SA|Saudi Arabia|Saudi
SG|Singapore|Singaporean
SY|Syria|Syrian
TH|Thailand|Thai
TJ|Tajikistan|Tajik
TL|Timor-Leste|Timorese
TM|Turkmenistan|Turkmen
TR|Turkey|Turkish
TW|Taiwan|Taiwanese
UZ|Uzbekistan|Uzbek
VN|Vietnam|Vietnamese
YE|Yemen|Yemeni
""",
    "Europe": """
AD|Andorra|Andorran
AL|Albania|Albanian
AT|Austria|Austrian
BA|Bosnia and Herzegovina|Bosnian
BE|Belgium|Belgian
BG|Bulgaria|Bulgarian
BY|Belarus|Belarusian
CH|Switzerland|Swiss
CZ|the Czech Republic|Czech
DE|Germany|German
DK|Denmark|Danish
EE|Estonia|Estonian
ES|Spain|Spanish
FI|Finland|Finnish
FO|the Faroe Islands|Faroese
FR|France|French
GB|the United Kingdom|British
GI|Gibraltar|Gibraltarian
GR|Greece|Greek
HR|Croatia|Croatian
HU|Hungary|Hungarian
IE|Ireland|Irish
IM|the Isle of Man|Manx
IS|Iceland|Icelandic
IT|Italy|Italian
JE|Jersey|Jersey
LI|Liechtenstein|Liechtenstein
LT|Lithuania|Lithuanian
LU|Luxembourg|Luxembourgish
LV|Latvia|Latvian
MC|Monaco|Monegasque
MD|Moldova|Moldovan
ME|Montenegro|Montenegrin
MK|North Macedonia|Macedonian
MT|Malta|Maltese
NL|the Netherlands|Dutch
NO|Norway|Norwegian
PL|Poland|Polish
PT|Portugal|Portuguese
RO|Romania|Romanian
RS|Serbia|Serbian
RU|Russia|Russian
SE|Sweden|Swedish
SI|Slovenia|Slovenian
SK|Slovakia|Slovak
UA|Ukraine|Ukrainian
XK|Kosovo|Kosovar
""",
    "North America": """
AG|Antigua and Barbuda|Antiguan
AW|Aruba|Aruban
BB|Barbados|Barbadian
BM|Bermuda|Bermudian
CA|Canada|Canadian
CR|Costa Rica|Costa Rican
CU|Cuba|Cuban
DO|the Dominican Republic|Dominican
GL|Greenland|Greenlandic
GT|Guatemala|Guatemalan
HN|Honduras|Honduran
HT|Haiti|Haitian
JM|Jamaica|Jamaican
KN|Saint Kitts and Nevis|Kittitian
LC|Saint Lucia|Saint Lucian
MX|Mexico|Mexican
NI|Nicaragua|Nicaraguan
PA|Panama|Panamanian
PR|Puerto Rico|Puerto Rican
SV|El Salvador|Salvadoran
TT|Trinidad and Tobago|Trinidadian
US|the United States|American
VI|the US Virgin Islands|Virgin Islands
""",
    "Oceania": """
AU|Australia|Australian
FM|Micronesia|Micronesian
KI|Kiribati|Kiribati
NC|New Caledonia|New Caledonian
NR|Nauru|Nauruan
NZ|New Zealand|New Zealand
TO|Tonga|Tongan
VU|Vanuatu|Vanuatuan
WS|Samoa|Samoan
""",
    "South America": """
AR|Argentina|Argentine
BO|Bolivia|Bolivian
BR|Brazil|Brazilian
CL|Chile|Chilean
CO|Colombia|Colombian
EC|Ecuador|Ecuadorian
GY|Guyana|Guyanese
PE|Peru|Peruvian
PY|Paraguay|Paraguayan
SR|Suriname|Surinamese
UY|Uruguay|Uruguayan
VE|Venezuela|Venezuelan
""",
}


def _countries() -> dict[str, Country]:
    """The table above, by country code."""
    found: dict[str, Country] = {}
    for continent, lines in _TABLE.items():
        for line in lines.split("\n"):
            if line:
                code, name, adjective = line.split("|")
                found[code] = Country(code, name, adjective, continent)
    return found


COUNTRIES = _countries()

_STATES = """
AL Alabama;AR Arkansas;AZ Arizona;CA California;CO Colorado;CT Connecticut;DE Delaware;FL Florida;
GA Georgia;HI Hawaii;IA Iowa;ID Idaho;IL Illinois;IN Indiana;KS Kansas;KY Kentucky;LA Louisiana;
MA Massachusetts;MD Maryland;ME Maine;MI Michigan;MN Minnesota;MO Missouri;MS Mississippi;
MT Montana;NC North Carolina;ND North Dakota;NE Nebraska;NH New Hampshire;NJ New Jersey;
NM New Mexico;NV Nevada;NY New York;OH Ohio;OK Oklahoma;OR Oregon;PA Pennsylvania;
RI Rhode Island;SC South Carolina;SD South Dakota;TN Tennessee;TX Texas;UT Utah;VA Virginia;
VT Vermont;WA Washington;WI Wisconsin;WV West Virginia;WY Wyoming
"""
US_STATES = dict(
    entry.strip().split(" ", 1) for entry in _STATES.replace("\n", "").split(";") if entry
)
