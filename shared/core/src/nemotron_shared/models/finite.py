"""Refuse weights that are not finite: a training that diverged, or a damaged copy, which no training can continue from.

    require_finite("./model", Path("model"))

Only the bytes that hold a number's exponent are looked at, without numpy or torch: about two seconds for each GB. Files
of PyTorch's own format are not read, because that would run what is in them.
"""

import math
from pathlib import Path
from typing import NamedTuple

from nemotron_shared.models.weights import SHOWN, SIZES, WEIGHTS, header_of
from nemotron_shared.system.errors import UserError, printable

CHUNK = 16 * 2**20


class Exponent(NamedTuple):
    """Bits of the last byte, and of the one before it, that are all set in NaN and infinity, and in nothing else."""

    last: int
    before: int = 0


EXPONENTS = {
    "F64": Exponent(0x7F, 0xF0), "F32": Exponent(0x7F, 0x80), "BF16": Exponent(0x7F, 0x80), "F16": Exponent(0x7C),
    "F8_E5M2": Exponent(0x7C), "F8_E4M3": Exponent(0x7F),
}  # fmt: skip
ORDINARY = {one.last: bytes(byte for byte in range(256) if byte & one.last != one.last) for one in EXPONENTS.values()}
"""Last bytes that only finite numbers have."""


def require_finite(label: str, folder: Path) -> None:
    """Check the values of all floating-point weights in a folder.

    Raises:
        UserError: a tensor holds NaN or an infinite value. A mask may: its values are not weights.
    """
    for file in sorted(folder.glob(f"*{WEIGHTS[0]}")):
        with file.open("rb") as stream:
            for name, tensor in header_of(f"{label}: {file.name}", file).items():
                if (exponent := EXPONENTS.get(tensor.dtype)) is None or "mask" in name:
                    continue
                size = SIZES[tensor.dtype]
                stream.seek(tensor.start)
                left = size * math.prod(tensor.shape)
                while left:
                    data = stream.read(min(left, CHUNK))
                    left = left - len(data) if data else 0
                    if _holds_others(data, size, exponent):
                        what = f"{label}: {file.name}: {printable(name[:SHOWN])} holds values that are not finite"
                        raise UserError(what, "take an earlier checkpoint, or download the file again")


def _holds_others(data: bytes, size: int, exponent: Exponent) -> bool:
    """Whether little-endian numbers of this size include NaN or an infinite value."""
    last = data[size - 1 :: size]
    if not last.translate(None, ORDINARY[exponent.last]):
        return False
    if not exponent.before:
        return True
    before = data[size - 2 :: size]
    return any(
        high & exponent.last == exponent.last and low & exponent.before == exponent.before
        for high, low in zip(last, before, strict=True)
    )
