"""Values that parsers stumble over, and changes of trees of values: what a field may hold, and where it may stand."""

import json
from random import Random
from typing import Any

LONG = "a" * 300
DEEP = 200
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 255, 2**31, 2**32, 2**63, -(2**63) - 1, 10**25, 10**400, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), -float("inf"), "", " ", "\n", "\0", "0", "-1", "nan", "null", "1e999", "\ud800",
    "\u202e\u0007", "\ufeff", "é" * 40, "\U0001f600", LONG, "../../etc/passwd", "/etc/passwd", "~nobody/x", "..", "/",
    "a/b", "C:\\x", "%s{}$", "${oc.env:HOME}", "${art:data,path}", "{{ x }}", "{% for", "&a *a", "v1", "hf://a/b",
    [], {}, [[]], [None], {"": ""}, {"a": {"b": {}}}, [1, "a", None], "9" * 5000,
)  # fmt: skip
Place = list[Any]


def places(value: Any, most: int = 400) -> list[Place]:
    """The paths of a tree's values, the tree itself first."""
    found: list[Place] = [[]]
    for path in found:
        node = at(value, path)
        if isinstance(node, dict | list) and len(found) < most:
            found += [[*path, key] for key in (node if isinstance(node, dict) else range(len(node)))]
    return found


def at(value: Any, path: Place) -> Any:
    """The value at a path."""
    for key in path:
        value = value[key]
    return value


def changed(value: Any, random: Random, words: tuple[str, ...] = ()) -> Any:
    """A tree with one change; the tree that is given stays as it is."""
    value = copied(value)
    path = random.choice(places(value))
    if not path:
        return random.choice(ODD) if random.random() < 0.3 else _grown(value, random)
    parent, key = at(value, path[:-1]), path[-1]
    way = random.randrange(9)
    if way == 0:
        del parent[key]
    elif way == 1:
        other = at(value, random.choice(places(value)))
        parent[key] = copied(other)
    elif way == 2 and isinstance(parent, list):
        parent.insert(random.randrange(len(parent) + 1), copied(parent[key]))
    elif way == 3 and isinstance(parent, dict):
        parent[_key(key, random, words)] = parent.pop(key)
    elif way == 4:
        parent[key] = _retyped(parent[key], random)
    elif way == 5:
        parent[key] = [parent[key]] if random.random() < 0.5 else {"a": parent[key]}
    elif way == 6 and isinstance(parent[key], int | float):
        parent[key] = _moved(parent[key], random)
    elif way == 7 and words:
        parent[key] = random.choice(words)
    else:
        parent[key] = random.choice(ODD)
    return value


def copied(value: Any) -> Any:
    """A deep copy of lists and objects."""
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value


def _grown(value: Any, random: Random) -> Any:
    if isinstance(value, dict):
        return value | {random.choice(("a", "", "name", "x" * 300)): random.choice(ODD)}
    if isinstance(value, list):
        return [*value, random.choice(ODD)] if random.random() < 0.5 else value * 3
    for _ in range(random.choice((1, DEEP))):
        value = [value]
    return value


def _key(key: Any, random: Random, words: tuple[str, ...]) -> str:
    text = str(key)
    ways = (text.upper(), f"{text} ", text[:-1], f"_{text}", "", "é", LONG, f"{text}.{text}", "../x", *words[:20])
    return random.choice(ways)


def _retyped(value: Any, random: Random) -> Any:
    if isinstance(value, str):
        return random.choice((len(value), [value], list(value[:20]), {value[:20]: value}, value.encode().hex()))
    if isinstance(value, bool) or value is None:
        return random.choice((int(bool(value)), str(value), [value]))
    if isinstance(value, int | float):
        return random.choice((str(value), float(value) if abs(value) < 1e300 else 0.5, bool(value), [value]))
    if isinstance(value, dict):
        return random.choice((list(value.items()), list(value), json.dumps(value, default=str), len(value)))
    return random.choice((dict(enumerate(value)), json.dumps(value, default=str), len(value)))


def _moved(number: float, random: Random) -> float:
    ways = (-number, number + 1, number - 1, number * 2, number * 10**9, number // 3, 2**31 - 1, 2**53 + 1)
    return random.choice(ways)
