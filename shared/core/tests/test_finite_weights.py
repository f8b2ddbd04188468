"""Weights that are not finite are not imported."""

import json
import struct
from pathlib import Path

import pytest

from nemotron_shared.models.finite import CHUNK, require_finite
from nemotron_shared.system.errors import UserError

ONE = {
    "F64": struct.pack("<d", 1.5), "F32": struct.pack("<f", 1.5), "F16": struct.pack("<e", 1.5), "BF16": b"\xc0\x3f",
    "F8_E5M2": b"\x3e", "F8_E4M3": b"\x3c", "I32": struct.pack("<i", -1), "U8": b"\xff",
}  # fmt: skip
LARGEST = {
    "F64": struct.pack("<d", -1.7976931348623157e308), "F32": struct.pack("<f", 3.4028234663852886e38),
    "F16": struct.pack("<e", -65504.0), "BF16": b"\x7f\x7f", "F8_E5M2": b"\x7b", "F8_E4M3": b"\xfe",
}  # fmt: skip
NOT_FINITE = {
    "F64": [struct.pack("<d", float("nan")), struct.pack("<d", float("-inf"))],
    "F32": [struct.pack("<f", float("nan")), struct.pack("<f", float("inf")), b"\x01\x00\x80\xff"],
    "F16": [struct.pack("<e", float("nan")), struct.pack("<e", float("-inf"))],
    "BF16": [b"\xc0\x7f", b"\x80\xff"], "F8_E5M2": [b"\x7c", b"\xff"], "F8_E4M3": [b"\x7f", b"\xff"],
}  # fmt: skip


def write(folder: Path, dtype: str, values: list[bytes], name: str = "model.norm.weight") -> None:
    content = b"".join(values)
    header = {name: {"dtype": dtype, "shape": [len(values)], "data_offsets": [0, len(content)]}}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)


@pytest.mark.parametrize("dtype", ONE)
def test_ordinary_values_and_the_largest_are_finite(tmp_path: Path, dtype: str) -> None:
    write(tmp_path, dtype, [ONE[dtype], LARGEST.get(dtype, ONE[dtype])] * 9)
    require_finite("mine", tmp_path)


@pytest.mark.parametrize(("dtype", "value"), [(dtype, value) for dtype in NOT_FINITE for value in NOT_FINITE[dtype]])
def test_a_value_that_is_not_finite_is_found_anywhere(tmp_path: Path, dtype: str, value: bytes) -> None:
    for place in (0, 7, 16):
        values = [LARGEST[dtype], *[ONE[dtype]] * 16]
        values[place] = value
        write(tmp_path, dtype, values)
        with pytest.raises(UserError, match=r"norm\.weight holds values that are not finite"):
            require_finite("mine", tmp_path)
    write(tmp_path, dtype, [value], name="model.causal_mask")
    require_finite("mine", tmp_path)


def test_a_large_tensor_is_read_to_its_end(tmp_path: Path) -> None:
    write(tmp_path, "BF16", [ONE["BF16"]] * (CHUNK // 2) + NOT_FINITE["BF16"][:1])
    with pytest.raises(UserError, match="not finite"):
        require_finite("mine", tmp_path)
