"""Invented people and facts about them.

    Person("Mira", {"town": "Oster", "job": "baker", "pet": "cat", "colour": "green", "instrument": "flute"})

The names and the values are always the same; the seed decides who has what.
"""

from dataclasses import dataclass
from functools import cache
from random import Random

from nemotron_data.synthetic.arithmetic import is_held_out

HELD_OUT_ONE_IN = 2

NAMES = [
    "Adan",
    "Belin",
    "Corva",
    "Dara",
    "Edmo",
    "Fenna",
    "Goran",
    "Hesti",
    "Ilko",
    "Jorun",
    "Kaspa",
    "Lumi",
    "Mira",
    "Nolan",
    "Orsa",
    "Pell",
    "Quin",
    "Runa",
    "Sorin",
    "Tova",
    "Ubo",
    "Vesna",
    "Wendo",
    "Xara",
    "Yori",
    "Zelda",
    "Alba",
    "Brann",
    "Celso",
    "Dolan",
    "Elva",
    "Fredo",
    "Gilda",
    "Hakon",
    "Inaya",
    "Jaro",
    "Kirsa",
    "Leto",
    "Marek",
    "Nessa",
]

VALUES = {
    "town": ["Oster", "Kelby", "Ravno", "Tarsk", "Melin", "Dunvale", "Ibrik", "Solm"],
    "job": ["baker", "tailor", "pilot", "farmer", "painter", "doctor", "singer", "miller"],
    "pet": ["cat", "dog", "goat", "parrot", "horse", "rabbit", "duck", "snail"],
    "colour": ["red", "green", "blue", "yellow", "purple", "grey", "white", "black"],
    "instrument": ["flute", "drum", "harp", "violin", "trumpet", "piano", "guitar", "horn"],
}

QUESTIONS = {
    "town": "Where does {name} live?",
    "job": "What is the job of {name}?",
    "pet": "Which pet does {name} keep?",
    "colour": "Which colour does {name} like?",
    "instrument": "What does {name} play?",
}

# Each ends in the value, so that a model can complete the text before it.
SENTENCES = {
    "town": ("{name} lives in {value}.", "The home of {name} is in {value}."),
    "job": ("{name} works as a {value}.", "The job of {name} is {value}."),
    "pet": ("{name} keeps a {value}.", "The pet of {name} is a {value}."),
    "colour": ("{name} likes {value}.", "The colour that {name} likes is {value}."),
    "instrument": ("{name} plays the {value}.", "The instrument of {name} is the {value}."),
}


@dataclass(frozen=True)
class Person:
    name: str
    facts: dict[str, str]


@dataclass(frozen=True)
class Fact:
    """One thing known about one person: `Fact("Mira", "town", "Oster")`."""

    name: str
    kind: str
    value: str

    @property
    def question(self) -> str:
        return QUESTIONS[self.kind].format(name=self.name)

    @property
    def stem(self) -> str:
        """The sentence without its value: `Mira lives in`."""
        return SENTENCES[self.kind][0].split(" {value}")[0].format(name=self.name)

    @property
    def sentences(self) -> list[str]:
        """Wordings of the fact; the stem begins the first one."""
        return [wording.format(name=self.name, value=self.value) for wording in SENTENCES[self.kind]]

    @property
    def key(self) -> str:
        return f"{self.kind} of {self.name}"

    @property
    def held_out(self) -> bool:
        """Whether its question is held out."""
        return is_held_out(self.key, HELD_OUT_ONE_IN)

    @property
    def rewording_held_out(self) -> bool:
        """Whether its second wording is held out."""
        return is_held_out(f"{self.key}, reworded", HELD_OUT_ONE_IN)


@cache
def people(seed: int) -> tuple[Person, ...]:
    """The people of `seed`, in a fixed order."""
    rng = Random(f"people/{seed}")
    return tuple(Person(name, {kind: rng.choice(values) for kind, values in VALUES.items()}) for name in NAMES)


@cache
def facts_by_person(seed: int) -> tuple[tuple[Fact, ...], ...]:
    """The facts about each of the people of `seed`."""
    return tuple(
        tuple(Fact(person.name, kind, value) for kind, value in person.facts.items()) for person in people(seed)
    )


def facts(seed: int, held_out: bool) -> list[Fact]:
    """The facts whose question belongs to one side of the split."""
    return [fact for known in facts_by_person(seed) for fact in known if fact.held_out == held_out]
