"""Damage to files: to their bytes, their lines, and to the values in them if the name's ending tells the format."""

import csv
import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import yaml

Files = Mapping[str, bytes]
"""An input: contents by file name. A word of a command line is the content of one file named `WORD`."""
WORD = "word"
DEEP = 200
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 255, 2**31, 2**32, 2**63, -(2**63) - 1, 10**25, 10**400, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), -float("inf"), "", " ", "\n", "\0", "0", "-1", "nan", "null", "1e999", "\ud800",
    "\u202e\u0007", "\ufeff", "é" * 40, "\U0001f600", "a" * 300, "../../etc/passwd", "/etc/passwd", "~nobody/x", "..",
    "/", "a/b", "C:\\x", "%s{}$", "${oc.env:HOME}", "${art:data,path}", "{{ x }}", "{% for", "&a *a", "v1",
    "hf://a/b", [], {}, [[]], [None], {"": ""}, {"a": {"b": {}}}, [1, "a", None], "9" * 5000,
)  # fmt: skip
"""Values that parsers stumble over."""
PIECES = (
    b"\0", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r\n", b"\r", b"\xc2\x85", b'"', b"'", b"{", b"[",
    b"]", b"}", b":", b",", b"=", b"#", b"&a", b"*a", b"<<", b"---\n", b"!!python/object:os.system x", b"-", b"9" * 40,
    b"NaN", b"Infinity", b"1e999", b"\\u0000", b"\\ud800", b"../", b"\xe2\x80\xae", b"[" * 300, b'{"a":' * 300,
    b"\x1f\x8b\x08\x00", b"PAR1", b"\x28\xb5\x2f\xfd", b"a" * 300,
)  # fmt: skip
YAML_FORMS = (
    b"a: &a [*a]\n", b"defaults: [default, default]\n", b"a: &x {b: 1}\nc: *x\n", b"? {a: b}\n: c\n", b"1: 2\n",
    b"a: 2026-99-99\n", b"a: 0b2\n", b"a: 1_000\n", b"defaults:\n  - {}\n", b"- a\n", b"%YAML 9.9\n",
    b"a: !!binary x\n", b"a: ${b}\nb: ${a}\n", b"a: ???\n", b"a: 12:30:99\n", b"null: 1\n", b"a: .nan\n",
)  # fmt: skip
UNREADABLE = (
    ValueError, TypeError, OverflowError, KeyError, IndexError, AttributeError, RecursionError, OSError,
    yaml.YAMLError, struct.error, csv.Error,
)  # fmt: skip


def damaged(files: Files, random: Random, words: Sequence[str] = ()) -> dict[str, bytes]:
    """The files with one to three changes; `words` are texts that the parser looks for."""
    made = dict(files)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if not made:
            break
        name = random.choice(list(made))
        if name != WORD and random.random() < 0.04:
            _change_files(made, name, random)
            continue
        change = _change_bytes
        if random.random() < 0.65:
            change = CHANGES.get(name.rpartition(".")[2], _change_bytes)
        try:
            made[name] = change(made[name], random, words)
        except UNREADABLE:  # damaged before, or a value that cannot be written in this format
            made[name] = _change_bytes(made[name], random, words)
    return made


def _change_files(made: dict[str, bytes], name: str, random: Random) -> None:
    """Remove a file, empty it, or give it the content of another."""
    way = random.randrange(3)
    if way == 0:
        del made[name]
    else:
        made[name] = b"" if way == 1 else made[random.choice(list(made))]


def _change_bytes(content: bytes, random: Random, words: Sequence[str]) -> bytes:
    """One change that knows nothing of the format."""
    low, high = sorted((random.randrange(len(content) + 1), random.randrange(len(content) + 1)))
    way = random.randrange(9)
    if way == 0:
        return content[:low]
    if way == 1:
        return content[:low] + content[min(high, low + random.choice((1, 2, 8, 100))) :]
    if way == 2:
        return content[:high] + content[low:high][:4096] + content[high:]
    if way == 3 and low < len(content):
        return content[:low] + bytes([content[low] ^ (1 << random.randrange(8))]) + content[low + 1 :]
    if way == 4:
        return content[:low] + bytes(random.randrange(256) for _ in range(random.choice((1, 4, 8)))) + content[low:]
    if way == 5 and words:
        return content[:low] + random.choice(words).encode("utf-8", "surrogatepass") + content[low:]
    if way == 6:
        return _change_lines(content, random)
    piece = random.choice(PIECES)
    return content[:low] + piece + content[low + (len(piece) if way == 7 else 0) :]


def _change_lines(content: bytes, random: Random) -> bytes:
    """Swap, repeat or drop lines."""
    lines = content.splitlines(keepends=True) or [content]
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    way = random.randrange(3)
    if way == 0:
        lines[one], lines[other] = lines[other], lines[one]
    elif way == 1:
        lines.insert(other, lines[one])
    else:
        del lines[one]
    return b"".join(lines)


def change_value(value: Any, random: Random, words: Sequence[str] = ()) -> Any:
    """A copy of a tree of values with one change."""
    value = _copy(value)
    path = random.choice(_paths(value))
    if not path:
        return random.choice(ODD) if random.random() < 0.3 else _grow(value, random)
    parent, key = _at(value, path[:-1]), path[-1]
    way = random.randrange(9)
    if way == 0:
        del parent[key]
    elif way == 1:
        parent[key] = _copy(_at(value, random.choice(_paths(value))))
    elif way == 2 and isinstance(parent, list):
        parent.insert(random.randrange(len(parent) + 1), _copy(parent[key]))
    elif way == 3 and isinstance(parent, dict):
        text = str(key)
        names = (text.upper(), f"{text} ", text[:-1], f"_{text}", "", "é", "a" * 300, f"{text}.{text}", "../x")
        parent[random.choice((*names, *words[:20]))] = parent.pop(key)
    elif way == 4:
        parent[key] = _retype(parent[key], random)
    elif way == 5:
        parent[key] = [parent[key]] if random.random() < 0.5 else {"a": parent[key]}
    elif way == 6 and isinstance(parent[key], int | float):
        number = parent[key]
        ways = (-number, number + 1, number - 1, number * 2, number * 10**9, number // 3, 2**31 - 1, 2**53 + 1)
        parent[key] = random.choice(ways)
    elif way == 7 and words:
        parent[key] = random.choice(words)
    else:
        parent[key] = random.choice(ODD)
    return value


def _paths(value: Any, most: int = 400) -> list[list[Any]]:
    """Paths of a tree's values, the tree itself first."""
    found: list[list[Any]] = [[]]
    for path in found:
        node = _at(value, path)
        if isinstance(node, dict | list) and len(found) < most:
            found += [[*path, key] for key in (node if isinstance(node, dict) else range(len(node)))]
    return found


def _at(value: Any, path: list[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def _copy(value: Any) -> Any:
    """A copy without shared parts, which `copy.deepcopy` would keep."""
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    return [_copy(one) for one in value] if isinstance(value, list) else value


def _grow(value: Any, random: Random) -> Any:
    if isinstance(value, dict):
        return value | {random.choice(("a", "", "name", "x" * 300)): random.choice(ODD)}
    if isinstance(value, list):
        return [*value, random.choice(ODD)] if random.random() < 0.5 else value * 3
    for _ in range(random.choice((1, DEEP))):
        value = [value]
    return value


def _retype(value: Any, random: Random) -> Any:
    if isinstance(value, str):
        return random.choice((len(value), [value], list(value[:20]), {value[:20]: value}, value.encode().hex()))
    if isinstance(value, bool) or value is None:
        return random.choice((int(bool(value)), str(value), [value]))
    if isinstance(value, int | float):
        return random.choice((str(value), float(value) if abs(value) < 1e300 else 0.5, bool(value), [value]))
    items = list(value.items()) if isinstance(value, dict) else dict(enumerate(value))
    return random.choice((items, list(value), json.dumps(value, default=str), len(value)))


def _json(content: bytes, random: Random, words: Sequence[str]) -> bytes:
    text = json.dumps(change_value(json.loads(content), random, words), ensure_ascii=random.random() < 0.7)
    if random.random() < 0.05:  # repeat a key
        at = text.find(", ")
        text = f"{text[:1]}{text[1:at]}, {text[1:]}" if at > 0 else text
    return text.encode("utf-8", "surrogatepass")


def _json_lines(content: bytes, random: Random, words: Sequence[str]) -> bytes:
    lines = content.splitlines() or [b""]
    number = random.randrange(len(lines))
    lines[number] = _json(lines[number], random, words)
    return b"\n".join(lines) + b"\n"


def _yaml(content: bytes, random: Random, words: Sequence[str]) -> bytes:
    if random.random() < 0.15:
        return content + random.choice(YAML_FORMS) if random.random() < 0.7 else random.choice(YAML_FORMS)
    value = change_value(yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), random, words)
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


def _toml(content: bytes, random: Random, words: Sequence[str]) -> bytes:
    """Another value on one line, in TOML's own spelling or not."""
    lines = content.splitlines()
    number = random.choice([number for number, line in enumerate(lines) if b"=" in line] or [0])
    key, _, _ = lines[number].partition(b"=")
    odd = json.dumps(random.choice((*ODD, *words)), default=str).encode()
    lines[number] = key + b"= " + random.choice((odd, odd, odd, b"2026-01-01", b"[[]]", b"{a = 1}", b"0x10", b"nan"))
    return b"\n".join(lines) + b"\n"


def _csv(content: bytes, random: Random, words: Sequence[str]) -> bytes:
    rows = [row for row in csv.reader(io.StringIO(content.decode())) if row] or [["x"]]
    row = random.choice(rows)
    way = random.randrange(4)
    if way == 0:
        row.append("x")
    elif way == 1:
        row.pop()
    elif way == 2:
        rows.insert(random.randrange(len(rows) + 1), list(row))
    else:
        row[random.randrange(len(row))] = str(random.choice((*ODD, *words)))[:6000]
    out = io.StringIO()
    csv.writer(out, lineterminator=random.choice(("\n", "\r\n"))).writerows(rows)
    return out.getvalue().encode("utf-8", "surrogatepass")


def _safetensors(content: bytes, random: Random, words: Sequence[str]) -> bytes:
    """Another header, or another length of it."""
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length], content[8 + length :]
    if random.random() < 0.2:
        return struct.pack("<Q", random.choice((0, 1, length + 1, length - 1, 2**63, 10**8, 2**32))) + header + data
    header = _json(header, random, words)
    return struct.pack("<Q", len(header)) + header + data


def _idx(content: bytes, random: Random, words: Sequence[str]) -> bytes:
    """Another field of the header, or another entry of a table."""
    made = bytearray(content)
    at, size = random.choice(((9, 8), (17, 1), (18, 8), (26, 8), (None, 8), (None, 4)))
    place = at if at is not None else 34 + 4 * random.randrange(max(1, (len(made) - 34 - size) // 4 + 1))
    number = random.choice((0, 1, 2, 3, 4, 8, 9, 255, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -1, -8))
    made[place : place + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(made)


def _parquet(content: bytes, random: Random, words: Sequence[str]) -> bytes:
    """Rows of other values, columns of other types, or a damaged footer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if random.random() < 0.3:  # thrift, between the data and the last eight bytes
        footer = int.from_bytes(content[-8:-4], "little")
        at = len(content) - 8 - footer + random.randrange(max(1, footer))
        return content[:at] + bytes([random.randrange(256)]) + content[at + 1 :]
    sink = io.BytesIO()
    try:
        table = pq.read_table(io.BytesIO(content))
        value = change_value(table.to_pylist(), random, words)
        pq.write_table(pa.Table.from_pylist(value, schema=table.schema if random.random() < 0.6 else None), sink)
    except pa.ArrowException as error:
        raise ValueError from error
    return sink.getvalue()


def _text(content: bytes, random: Random, words: Sequence[str]) -> bytes:
    """Pieces of the language that the text is written in."""
    piece = random.choice(words).encode() if words else b""
    at = random.randrange(len(content) + 1)
    return content[:at] + piece * random.choice((1, 1, 2, DEEP)) + content[at:]


CHANGES: dict[str, Callable[[bytes, Random, Sequence[str]], bytes]] = {
    "json": _json, "jsonl": _json_lines, "yaml": _yaml, "toml": _toml, "csv": _csv, "safetensors": _safetensors,
    "idx": _idx, "parquet": _parquet, "jinja": _text, "word": _text, "log": _text,
}  # fmt: skip
"""By the ending of a file's name."""
