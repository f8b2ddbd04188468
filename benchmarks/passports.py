"""Export models of several kinds for transformers and llama.cpp, and write what their passports say: docs/passports.md.

    uv run python benchmarks/passports.py sft                    beside a model of the store, before a release
    uv run python benchmarks/passports.py sft --out mine.md

The models of the other kinds are small and have random weights. llama.cpp's runtimes: nemotron engine install
llama_cpp, libllama. The passport of the first model is made in a process of its own, and its time is measured.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from nemotron_app.main import main as nemotron
from nemotron_shared.artifacts import Store
from nemotron_shared.errors import UserError, exit_code_of
from nemotron_shared.runtime.machine import hardware
from nemotron_shared.runtime.models.finding import find_model
from nemotron_shared.runtime.records import git_commit

ROOT = Path(__file__).resolve().parent.parent
KINDS = {"super3_tiny": "Super's kind", "nano3_tiny": "Nano's kind", "llama": "Llama", "qwen2": "Qwen2"}
RUNTIMES = ("transformers", "llama.cpp")
PAGE = """# Passports of several kinds

What [passports](use.md#what-was-trained-is-what-is-served) say of exports in float32, each loaded and asked by two \
runtimes. `{model}` was trained; the other models are small, of random weights, and with an adapter of random weights \
on every layer where "adapter" says so. Measured at commit {commit}, on {date}, on {machine}; one run, by

```bash
uv run python benchmarks/passports.py sft
```

| model | adapter | runtime | tensors compared | largest difference | KL, random tokens | likeliest token the same | \
greedy tokens |
|---|---|---|---|---|--:|--:|--:|
{rows}

The passport of `{model}`, its folder and its GGUF file with both runtimes, {held}, took {wall:.0f} s ({cpu:.0f} s of \
processor time) as a command, of which Python's and the libraries' start is {start:.0f} s ({start_cpu:.0f} s).
"""


def rows(name: str, adapter: str, told: dict[str, Any]) -> Iterator[str]:
    """Lines of the table, of one passport's data."""
    tensors, _, numbers, _ = (dict(map(tuple, part["facts"])) for part in told["parts"])
    for runtime in RUNTIMES:
        said = numbers.get(f"{runtime}, random tokens")
        if said is None:
            raise UserError(f"{name}: {runtime} was not asked: {told['parts'][2]['not_run']}", "install it")
        kl, same, greedy = said.partition(" (")[0], said.split("the same in ")[1].split(",")[0], said.split(", ")[-1]
        cells = [name, adapter, runtime, tensors["tensors"].removesuffix(" compared"), tensors["largest difference"]]
        yield f"| {' | '.join([*cells, kl.removeprefix('KL '), same, greedy.removesuffix(' greedy tokens')])} |"


def exported(home: Path, model: str, folder: Path) -> dict[str, Any]:
    """The data of an export's passport; the folder holds what both runtimes load."""
    words = ["export", model, str(folder), "--home", str(home), "--for", RUNTIMES[0], "--for", RUNTIMES[1]]
    if code := nemotron([*words, "--dtype", "float32"]):
        raise UserError(f"the export of {model} ended with exit code {code}", "see above")
    return json.loads((folder / "passport.json").read_text())


def timed(*words: str) -> tuple[float, float]:
    """Seconds of a command, and of processors."""
    begun = time.monotonic()
    process = os.posix_spawn(sys.executable, [sys.executable, "-m", "nemotron_app.main", *words], os.environ)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise UserError(f"{' '.join(words)} ended with status {status}", "see above")
    return time.monotonic() - begun, usage.ru_utime + usage.ru_stime


@click.command(help=__doc__)
@click.argument("model")
@click.option("--home", type=click.Path(path_type=Path), help="the store")
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "docs" / "passports.md")
def command(model: str, home: Path | None, out: Path) -> int:
    """Run the command; see the module docstring."""
    sys.path.append(str(ROOT / "shared" / "serving" / "tests"))
    from passport_support import with_adapters  # models of the tests

    store = Store.open(str(home) if home else None)
    name = find_model(store, model, family="super3", trusted=False).reference
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        lines = [*rows(f"`{name}`", "", exported(store.home, name, work / "own"))]
        held = dict(map(tuple, json.loads((work / "own" / "passport.json").read_text())["parts"][3]["facts"]))
        wall, cpu = timed("verify", str(work / "own"), "--home", str(store.home))
        start, start_cpu = timed("verify", str(work / "own"), "--alone", "--home", str(store.home))
        for kind, told in KINDS.items():
            made = with_adapters(work / kind, kind)
            for reference, adapter in (("base", ""), ("trained", "merged")):
                lines += rows(told, adapter, exported(made.home, reference, work / f"{kind} {reference}"))
    commit, here = git_commit(ROOT) or "unknown", hardware()
    text = PAGE.format(
        model=name, commit=commit[:12] + (", with changes" if commit.endswith("-dirty") else ""),
        date=time.strftime("%Y-%m-%d", time.gmtime()), machine=f"{here['processor']} with {here['cores']} cores",
        rows="\n".join(lines), held=held.get("llama.cpp, rows", "no held-out rows"), wall=wall, cpu=cpu, start=start,
        start_cpu=start_cpu,
    )  # fmt: skip
    out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: command(standalone_mode=False)))
