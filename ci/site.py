"""Build the documents as a site, and fail on broken links or anchors.

    uv run python ci/site.py            # only check that it can be built, for CI
    uv run python ci/site.py site       # into a folder; open site/index.html

The pages are those that git tracks: the README, docs/, and the README of each member. They are copied with the files
that they link to, because a site is built from one folder and ours stay in place. `docs/zensical.toml` has the order of
the pages; a page that is missing there is an error.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "docs" / "zensical.toml"
LEFT_OUT = ("CHANGELOG.md", ".github/", "benchmarks/", "tests/")
"""Files to read in the repository, not on the site."""
LINK = re.compile(r"\]\(([^)#\s]+)")
NAMED_BLOCK = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
LOADED = re.compile(r'<(?:script|img|iframe)[^>]*\ssrc="?https?:|<link[^>]*"?stylesheet[^>]*https?:|class="?mermaid')
"""What a browser would load from other sites; the theme draws Mermaid diagrams with a script from a CDN."""


def tracked() -> list[str]:
    """Every page of the site, by its path in the repository."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in listed.split("\n") if path and not any(part in path for part in LEFT_OUT)]


def linked(pages: list[str]) -> Iterator[Path]:
    """Files and folders of the repository that the pages link to."""
    for page in pages:
        for target in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            path = (ROOT / page).parent / target
            if "://" not in target and path.exists():
                yield path.resolve()


def named(entry: Any) -> Iterator[str]:
    """Pages of the navigation, at any depth."""
    if isinstance(entry, str):
        yield entry
    for child in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from named(child)


def build(out: Path | None) -> int:
    """Build into `out`, or into a temporary folder."""
    pages = tracked()
    differ = set(pages) ^ set(named(tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["nav"]))
    if differ:
        print(f"{CONFIG.relative_to(ROOT)}: its nav and the pages differ: {', '.join(sorted(differ))}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copyfile(CONFIG, folder / CONFIG.name)
        for path in {*(ROOT / page for page in pages), *linked(pages)}:
            target = folder / "pages" / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            elif path.suffix == ".md":
                # The site's Markdown does not recognize "```toml env.toml" as a fence, and drops the text after it.
                text = path.read_text(encoding="utf-8")
                target.write_text(NAMED_BLOCK.sub(r'```\1 title="\2"', text), encoding="utf-8")
            else:
                shutil.copyfile(path, target)
        built = subprocess.run(["zensical", "build", "--strict"], cwd=folder)
        for page in sorted((folder / "site").rglob("*.html")) if built.returncode == 0 else ():
            if found := LOADED.search(page.read_text(encoding="utf-8")):
                print(f"{page.relative_to(folder / 'site')}: not readable offline: {found[0]}", file=sys.stderr)
                return 1
        if built.returncode == 0 and out is not None:
            shutil.copytree(folder / "site", out, dirs_exist_ok=True)
        return built.returncode


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
