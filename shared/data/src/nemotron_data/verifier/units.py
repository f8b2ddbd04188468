"""Units that turn into each other, so that 42 minutes are not 42 hours, and 90 minutes are 1.5 hours.

unit_of("apples")      None: not one of these
unit_of("minutes")     ("time", Fraction(60))
unit_of("km/h")        ("length/time", Fraction(1000, 3600))
"""

import re
from fractions import Fraction

UNITS: dict[str, dict[str, Fraction]] = {
    "time": {
        "s sec secs second seconds": Fraction(1), "min mins minute minutes": Fraction(60),
        "h hr hrs hour hours": Fraction(3600), "day days": Fraction(86400), "week weeks": Fraction(604800),
        "ms millisecond milliseconds": Fraction(1, 1000),
    },
    "length": {
        "mm millimeter millimeters millimetre millimetres": Fraction(1, 1000),
        "cm centimeter centimeters centimetre centimetres": Fraction(1, 100),
        "m meter meters metre metres": Fraction(1), "km kilometer kilometers kilometre kilometres": Fraction(1000),
        "inch inches": Fraction(254, 10000), "ft foot feet": Fraction(3048, 10000),
        "yd yard yards": Fraction(9144, 10000), "mile miles": Fraction(1609344, 1000),
    },
    "mass": {
        "mg milligram milligrams": Fraction(1, 1000), "g gram grams": Fraction(1),
        "kg kilogram kilograms": Fraction(1000), "ton tons tonne tonnes": Fraction(10**6),
    },
    "volume": {"ml milliliter milliliters millilitre millilitres": Fraction(1, 1000),
               "l liter liters litre litres": Fraction(1)},
    "money": {"cent cents": Fraction(1, 100), "dollar dollars usd": Fraction(1)},
}  # fmt: skip
BY_NAME = {
    name: (dimension, factor) for dimension, names in UNITS.items() for group, factor in names.items()
    for name in group.split()
}  # fmt: skip


RATES = {"mph": "mile/hour", "kph": "km/hour", "kmh": "km/hour"}


def unit_of(text: str) -> tuple[str, Fraction] | None:
    """What a unit measures, and how much of it; None for one that stands for itself. A rate has both its units."""
    name = text.strip().strip(".").lower()
    over, sign, under = re.sub(r"\s*(?:/|\bper\b)\s*", "/", RATES.get(name, name)).partition("/")
    if not sign or not (BY_NAME.get(over) and BY_NAME.get(under)):
        return BY_NAME.get(over)
    (one, much), (other, each) = BY_NAME[over], BY_NAME[under]
    return f"{one}/{other}", much / each
