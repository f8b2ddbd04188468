"""The target machine of an environment: its Python, its processor, and compatible wheels.

Target("3.11", "x86_64").best(["torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl", ...])

Tags and markers are evaluated for the target, not for the machine that downloads.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from nemotron_shared.errors import UserError
from nemotron_shared.runtime.environments import SUPPORTED

PLATFORMS = ("x86_64", "aarch64")
GLIBC = 28
"""Accept wheels for glibc up to 2.28, which RHEL 8 and anything newer provides."""
OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17}
LEGACY = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
"""Names of glibc versions in tags of older wheels."""


@dataclass(frozen=True)
class Target:
    """A Linux machine."""

    python: str
    platform: str

    def __post_init__(self) -> None:
        for asked, known, what in (
            (self.python, SUPPORTED, "the packages are not made for Python"),
            (self.platform, PLATFORMS, "there are no packages with CUDA for the platform"),
        ):
            if asked not in known:
                raise UserError(f"{what} {asked}", f"there are: {', '.join(known)}")

    @cached_property
    def tags(self) -> dict[Tag, int]:
        """Tags of compatible wheels with their rank: 0 is best."""
        version = tuple(map(int, self.python.split(".")))
        platforms = []
        for minor in range(GLIBC, OLDEST_GLIBC[self.platform] - 1, -1):
            platforms.append(f"manylinux_2_{minor}_{self.platform}")
            platforms += [f"{LEGACY[minor]}_{self.platform}"] if minor in LEGACY else []
        platforms.append(f"linux_{self.platform}")
        known = [*cpython_tags(version, platforms=platforms)]
        known += compatible_tags(version, interpreter=f"cp{version[0]}{version[1]}", platforms=platforms)
        return {tag: rank for rank, tag in reversed([*enumerate(known)])}

    def fits(self, marker: str | None) -> bool:
        """Whether a requirement with this marker applies to the machine."""
        return marker is None or Marker(marker).evaluate(
            {
                "implementation_name": "cpython",
                "implementation_version": f"{self.python}.0",
                "os_name": "posix",
                "platform_machine": self.platform,
                "platform_python_implementation": "CPython",
                "platform_system": "Linux",
                "python_full_version": f"{self.python}.0",
                "python_version": self.python,
                "sys_platform": "linux",
            }
        )

    def best(self, names: Iterable[str]) -> str | None:
        """The best of several wheels of one version; None if none is compatible."""
        ranked = []
        for name in names:
            try:
                tags = parse_wheel_filename(name)[3]
            except InvalidWheelFilename:
                continue
            ranks = [self.tags[tag] for tag in tags if tag in self.tags]
            if ranks:
                ranked.append((min(ranks), name))
        return min(ranked)[1] if ranked else None
