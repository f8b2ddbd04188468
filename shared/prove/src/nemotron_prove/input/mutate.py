"""Damage to files: of their bytes, their lines, and of the values in them where the name's ending tells the form."""

import csv
import io
import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

from nemotron_prove.input.target import WORD, Files
from nemotron_prove.input.values import DEEP, ODD, changed

PIECES = (
    b"\0",
    b"\xff",
    b"\xfe\xff",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\r\n",
    b"\r",
    b"\xc2\x85",
    b'"',
    b"'",
    b"{",
    b"[",
    b"]",
    b"}",
    b":",
    b",",
    b"=",
    b"#",
    b"&a",
    b"*a",
    b"<<",
    b"---\n",
    b"!!python/object:os.system x",
    b"-",
    b"9" * 40,
    b"NaN",
    b"Infinity",
    b"1e999",
    b"\\u0000",
    b"\\ud800",
    b"../",
    b"\xe2\x80\xae",
    b"[" * 300,
    b'{"a":' * 300,
    b"\x1f\x8b\x08\x00",
    b"PAR1",
    b"\x28\xb5\x2f\xfd",
    b"a" * 300,
)
YAML_FORMS = (
    b"a: &a [*a]\n",
    b"defaults: [default, default]\n",
    b"a: &x {b: 1}\nc: *x\n",
    b"? {a: b}\n: c\n",
    b"1: 2\n",
    b"a: 2026-99-99\n",
    b"a: 0b2\n",
    b"a: 1_000\n",
    b"defaults:\n  - {}\n",
    b"- a\n",
    b"%YAML 9.9\n",
    b"a: !!binary x\n",
    b"a: ${b}\nb: ${a}\n",
    b"a: ???\n",
    b"a: 12:30:99\n",
    b"null: 1\n",
    b"a: .nan\n",
)


def mutated(files: Files, random: Random, words: tuple[str, ...] = ()) -> dict[str, bytes]:
    """The files with one to three changes."""
    made = dict(files)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        name = random.choice(list(made)) if made else None
        if name is None:
            break
        if name != WORD and random.random() < 0.04:
            _as_files(made, name, random)
            continue
        by_values = CHANGES.get(name.rpartition(".")[2])
        try:
            structured = by_values is not None and random.random() < 0.65
            made[name] = by_values(made[name], random, words) if structured else _bytes(made[name], random, words)
        except (
            ValueError,
            TypeError,
            OverflowError,
            KeyError,
            IndexError,
            yaml.YAMLError,
            RecursionError,
            struct.error,
            csv.Error,
        ):
            made[name] = _bytes(made[name], random, words)  # damaged before, or not to be written in this form
    return made


def _as_files(made: dict[str, bytes], name: str, random: Random) -> None:
    """Remove a file, empty it, or give it another's content."""
    way = random.randrange(3)
    if way == 0:
        del made[name]
    elif way == 1:
        made[name] = b""
    else:
        made[name] = made[random.choice(list(made))]


def _bytes(content: bytes, random: Random, words: tuple[str, ...]) -> bytes:
    """One change that knows nothing of the form."""
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
        return _lines(content, random)
    piece = random.choice(PIECES)
    return content[:low] + piece + content[low + (len(piece) if way == 7 else 0) :]


def _lines(content: bytes, random: Random) -> bytes:
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


def _json(content: bytes, random: Random, words: tuple[str, ...]) -> bytes:
    text = json.dumps(changed(json.loads(content), random, words), ensure_ascii=random.random() < 0.7)
    if random.random() < 0.05:  # a key that stands twice
        at = text.find(", ")
        text = f"{text[:1]}{text[1:at]}, {text[1:]}" if at > 0 else text
    return text.encode("utf-8", "surrogatepass")


def _json_lines(content: bytes, random: Random, words: tuple[str, ...]) -> bytes:
    lines = content.splitlines() or [b""]
    number = random.randrange(len(lines))
    lines[number] = _json(lines[number], random, words)
    return b"\n".join(lines) + b"\n"


def _yaml(content: bytes, random: Random, words: tuple[str, ...]) -> bytes:
    if random.random() < 0.15:
        return content + random.choice(YAML_FORMS) if random.random() < 0.7 else random.choice(YAML_FORMS)
    value = changed(yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), random, words)
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


def _toml(content: bytes, random: Random, words: tuple[str, ...]) -> bytes:
    """One value of one line, in TOML's own spelling or not."""
    lines = content.splitlines()
    settings = [number for number, line in enumerate(lines) if b"=" in line]
    number = random.choice(settings)
    key, _, _ = lines[number].partition(b"=")
    odd = json.dumps(random.choice((*ODD, *words)), default=str).encode()
    lines[number] = key + b"= " + random.choice((odd, odd, odd, b"2026-01-01", b"[[]]", b"{a = 1}", b"0x10", b"nan"))
    return b"\n".join(lines) + b"\n"


def _cells(content: bytes, random: Random, words: tuple[str, ...]) -> bytes:
    rows = list(csv.reader(io.StringIO(content.decode())))
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


def _safetensors(content: bytes, random: Random, words: tuple[str, ...]) -> bytes:
    """The header, its length, or the length of what follows."""
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length], content[8 + length :]
    if random.random() < 0.2:
        return struct.pack("<Q", random.choice((0, 1, length + 1, length - 1, 2**63, 10**8, 2**32))) + header + data
    header = _json(header, random, words)
    return struct.pack("<Q", len(header)) + header + data


def _idx(content: bytes, random: Random, words: tuple[str, ...]) -> bytes:
    """A field of the header, or an entry of a table."""
    made = bytearray(content)
    at, form = random.choice(((9, "<Q"), (17, "<B"), (18, "<Q"), (26, "<Q"), (None, "<q"), (None, "<i")))
    size = struct.calcsize(form)
    place = at if at is not None else 34 + 4 * random.randrange(max(1, (len(made) - 34 - size) // 4 + 1))
    numbers = (0, 1, 2, 3, 4, 8, 9, 255, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -1, -8)
    number = random.choice(numbers)
    bits = 8 * size
    made[place : place + size] = (number % (1 << bits)).to_bytes(size, "little")
    return bytes(made)


def _parquet(content: bytes, random: Random, words: tuple[str, ...]) -> bytes:
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
        value = changed(table.to_pylist(), random, words)
        made = pa.Table.from_pylist(value, schema=table.schema if random.random() < 0.6 else None)
        pq.write_table(made, sink)
    except (pa.ArrowException, AttributeError, OverflowError, OSError) as error:
        raise ValueError from error
    return sink.getvalue()


def _nested(content: bytes, random: Random, words: tuple[str, ...]) -> bytes:
    """A text with pieces of the language that it is written in."""
    piece = random.choice(words).encode() if words else b""
    at = random.randrange(len(content) + 1)
    return content[:at] + piece * random.choice((1, 1, 2, DEEP)) + content[at:]


CHANGES: dict[str, Callable[[bytes, Random, tuple[str, ...]], Any]] = {
    "json": _json,
    "jsonl": _json_lines,
    "yaml": _yaml,
    "toml": _toml,
    "csv": _cells,
    "safetensors": _safetensors,
    "idx": _idx,
    "parquet": _parquet,
    "jinja": _nested,
    "word": _nested,
    "log": _nested,
}
"""By the ending of a file's name."""
