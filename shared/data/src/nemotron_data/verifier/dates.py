"""Days, times of day and ratios as people write them.

dates_in("the 4th of July 1776, or 1776-07-04")     [(1776, 7, 4), (1776, 7, 4)]
"""

import re

MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
MONTH = "|".join(f"{name}|{name[:3]}\\.?" for name in MONTHS)
DATE = re.compile(
    rf"(?P<month>{MONTH})\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?:\s*,?\s+(?P<year>\d{{4}})\b)?"
    rf"|(?P<day2>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<month2>{MONTH})\b(?:\s*,?\s+(?P<year2>\d{{4}})\b)?"
    r"|\b(?P<year3>\d{4})-(?P<month3>\d{2})-(?P<day3>\d{2})\b",
    re.IGNORECASE,
)


def dates_in(text: str) -> list[tuple[int, int, int]]:
    """Year, month and day of each date of a text, in its order; the year is 0 where none is named."""
    found = []
    for match in DATE.finditer(text):
        year, month, day = (
            next(filter(None, (match[f"{part}{number}"] for number in ("", "2", "3"))), "0")
            for part in ("year", "month", "day")
        )
        number = int(month) if month.isdigit() else [name[:3] for name in MONTHS].index(month[:3].lower()) + 1
        found.append((int(year), number, int(day)))
    return found


CLOCK = re.compile(r"\b(\d{1,2}):(\d\d)(?:\s*([ap])\.?\s?m\b)?|\b(\d{1,2})\s*([ap])\.?\s?m\b", re.IGNORECASE)
RATIO = re.compile(r"\b(\d+)\s*(?::|to)\s*(\d+)\b(?!\s*[ap]\.?m)")


def clock_times_in(text: str) -> list[tuple[int, int]]:
    """Hour and minute of each time of day; one without am or pm counts where its minutes have two figures."""
    found = []
    for match in CLOCK.finditer(text):
        hour, minute = int(match[1] or match[4]), int(match[2] or 0)
        half = (match[3] or match[5] or "").lower()
        found.append(((hour % 12 + (12 if half == "p" else 0)) if half else hour, minute))
    return found


def ratios_in(text: str) -> list[tuple[int, int]]:
    """Both sides of each ratio: 3:4, 3 to 4."""
    return [(int(match[1]), int(match[2])) for match in RATIO.finditer(text)]
