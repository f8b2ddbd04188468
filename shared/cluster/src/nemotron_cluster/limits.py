"""Times, memory and accelerators in the spelling of the cluster that reads them.

seconds_of("1-02:30")           95400, as Slurm reads it
seconds_of("0")                 None: no limit, as for UNLIMITED
require_node_memory("1.5G")     ValueError: Slurm knows whole numbers, such as 1536M
require_memory("64GB")          ValueError: Kubernetes knows 64G and 64Gi
require_accelerators("8xH100")  ValueError: SkyPilot knows H100:8

Slurm's rules are those of `time_str2secs` in its src/common/parse_time.c and `str_to_mbytes` in proc_args.c, and sbatch
takes a time of 0 as no limit;
Kubernetes' are the grammar in apimachinery's pkg/api/resource/quantity.go; SkyPilot's were tried with 0.14.1.
"""

import math
import re

TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d\d?))?(?::(\d\d?))?", re.ASCII)
NO_LIMIT = ("unlimited", "infinite", "-1")
NODE_MEMORY = re.compile(r"\d+([KMGT][A-Za-z]*)?", re.ASCII | re.IGNORECASE)
"""Slurm looks at the first letter only: 64G, 64GB and 64Gi are the same."""
QUANTITY = re.compile(r"\+?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = "KMGTPE"
LEAST_MEMORY = 2**20
"""Bytes. In less, no container starts: a unit was forgotten, or `m`, a thousandth, written for `M`."""
UNIT_OF_MEMORY = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgtp])?(i?)b?(?:ytes)?\s*", re.IGNORECASE)
COUNT_FIRST = re.compile(r"(\d+)\s*[xX\u00d7*: ]\s*([A-Za-z].*)")
COUNT_JOINED = re.compile(r"([A-Za-z].*\d.*?)\s*[x\u00d7*]\s*(\d{1,2})")
MEMORY_OF_GPU = re.compile(r"\d+(?:GB|MB)\+?", re.IGNORECASE)


def seconds_of(time: str) -> int | None:
    """A Slurm time limit in seconds: MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS. None: no limit.

    Raises:
        ValueError: it is none.
    """
    if time.lower() in NO_LIMIT:
        return None
    match = TIME.fullmatch(time)
    if match is None:
        raise ValueError(f"'{time}' is not a time limit: write MINUTES, HH:MM:SS or D-HH:MM:SS; 0 is no limit")
    days, *rest = match.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is None and len(numbers) < 3:
        numbers.insert(0, 0)  # without days, hours are only written together with seconds
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return (((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds) or None


def require_node_memory(text: str) -> str:
    """Memory of a node that sbatch would take; "0" is all of it.

    Raises:
        ValueError: with the spelling that it would take.
    """
    if not NODE_MEMORY.fullmatch(text):
        raise ValueError(
            f"'{text}' is not a memory size for Slurm: write a whole number with K, M, G or T, such as \"64G\";"
            " 0 is all of a node's"
        )
    return text


def quantity(text: str) -> float:
    """A quantity of Kubernetes: 500m, 64Gi, 1e9.

    Raises:
        ValueError: Kubernetes would not read it.
    """
    match = QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a Kubernetes quantity")
    number, unit = float(match[1]), match[2] or ""
    if unit.endswith("i"):
        return number * 1024.0 ** (BINARY.index(unit.removesuffix("i")) + 1)
    if unit[:1] in ("e", "E") and len(unit) > 1:
        return number * 10.0 ** int(unit[1:])
    return number * 10.0 ** POWERS.get(unit, 0)


def require_cpus(text: str) -> str:
    """A number of CPUs that Kubernetes would take.

    Raises:
        ValueError: with the spelling that it would take.
    """
    if not QUANTITY.fullmatch(text) or not quantity(text):
        raise ValueError(f'\'{text}\' is not a number of CPUs for Kubernetes: write "8", or "500m" for half of one')
    return text


def require_memory(text: str) -> str:
    """An amount of memory that Kubernetes would take, and a container could use.

    Raises:
        ValueError: with the spelling that is meant.
    """
    if QUANTITY.fullmatch(text) and quantity(text) >= LEAST_MEMORY:
        return text
    meant = UNIT_OF_MEMORY.fullmatch(text)
    if meant is None or not float(meant[1]):
        raise ValueError(f'\'{text}\' is not a memory size for Kubernetes: write "64Gi" or "64G"')
    number, unit, binary = meant[1], (meant[2] or "G").upper(), meant[3]
    decimal = "k" if unit == "K" else unit
    both = f'"{number}{unit}i"' if binary else f'"{number}{unit}i" (powers of 1024) or "{number}{decimal}" (of 1000)'
    wrong = "would be less than 1 MiB" if QUANTITY.fullmatch(text) else "is not a Kubernetes quantity"
    raise ValueError(f"'{text}' {wrong}: write {both}")


def require_accelerators(text: str) -> str:
    """Accelerators that SkyPilot would take as they are meant: NAME, or NAME:COUNT.

    SkyPilot takes "8xH100" for the name of one accelerator, and says only at the launch that no cloud has it.

    Raises:
        ValueError: with the spelling that is meant.
    """
    if swapped := COUNT_FIRST.fullmatch(text) or COUNT_JOINED.fullmatch(text):
        count, name = swapped.groups() if swapped.re is COUNT_FIRST else reversed(swapped.groups())
        raise ValueError(f"'{text}' would be the name of one accelerator: write \"{name}:{count}\"")
    if text.isdecimal():
        raise ValueError(f"'{text}' would be the name of an accelerator: write NAME:{text}, such as \"H100:{text}\"")
    name, *rest = parts = text.split(":")
    several = len(rest) > 1 and not any(map(MEMORY_OF_GPU.fullmatch, parts))
    if not name or name != name.strip() or several or (rest and _count(rest[-1]) is None):
        raise ValueError(f"'{text}' names no accelerators for SkyPilot: write NAME or NAME:COUNT, such as \"H100:8\"")
    return text


def accelerator_count(text: str) -> int:
    """How many accelerators a node has: 8 for "H100:8", 1 for "H100"; a part of one counts as one."""
    _, *rest = text.split(":")
    return max(1, int(_count(rest[-1]) or 1)) if rest else 1


def _count(text: str) -> float | None:
    if MEMORY_OF_GPU.fullmatch(text):
        return 1.0
    try:
        count = float(text)
    except ValueError:
        return None
    return count if 0 < count < math.inf else None
