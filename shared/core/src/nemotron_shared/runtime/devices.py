"""Specifications of GPUs from their data sheets: dense operations, without sparsity."""

import re
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """Specifications of one device.

    Attributes:
        operations: per second, in bfloat16.
        bandwidth: of its memory, in bytes per second.
        memory: in bytes.
    """

    name: str
    operations: float
    bandwidth: float
    memory: float


DEVICES = {
    name: Device(name, teraflops * 1e12, terabytes * 1e12, gibibytes * GIB)
    for name, teraflops, terabytes, gibibytes in [
        ("A100-40GB", 312, 1.555, 40),
        ("A100-80GB", 312, 2.0, 80),
        ("H100", 989, 3.35, 80),
        ("H200", 989, 4.8, 140),
        ("B200", 2250, 8.0, 179),
        ("GB200", 2500, 8.0, 185),
        ("B300", 2250, 8.0, 268),
        ("GB300", 2500, 8.0, 277),
        ("L40S", 362, 0.864, 48),
        ("RTX 4090", 165, 1.01, 24),
        ("RTX 5090", 210, 1.79, 32),
    ]
}
USUAL = {"A100": "A100-80GB"}
"""The variant meant by a name without a memory size."""
CORE = "CPU core"
CORE_OPERATIONS = 17e9
"""Per second, overall: measured with the tiny model on one core of an AMD EPYC (Zen 3) at 2.4 GHz."""


LONGEST_SIZE = 8


def device_named(name: str) -> Device | None:
    """The device named in "NVIDIA H100 80GB HBM3" or "rtx4090"; None for an unknown one or another memory size."""
    words = re.sub(r"[^A-Z0-9]+", " ", name.upper()).split()
    told = next((word for word in words if re.fullmatch(r"\d+GB", word)), None)
    kind = next((one for one in {key.partition("-")[0] for key in DEVICES} if _is_called(one, words)), None)
    if kind is None or len(told or "") > LONGEST_SIZE:
        return None
    found = DEVICES.get(f"{kind}-{told}") or DEVICES[USUAL.get(kind, kind)]
    # drivers and data sheets may mean GB or GiB
    return found if told is None or abs(int(told[:-2]) * GIB / found.memory - 1) < 0.1 else None


def _is_called(kind: str, words: list[str]) -> bool:
    return kind in words or (" " in kind and (f" {kind} " in f" {' '.join(words)} " or kind.replace(" ", "") in words))
