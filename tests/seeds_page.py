"""Write docs/seeds.md from seeds.yaml:

python tests/seeds_page.py
"""

import sys
from collections import Counter

from seeds_table import LAST, STATES, Row, read_table
from support import ROOT

PAGE = ROOT / "docs" / "seeds.md"

SECTIONS = {
    "A": "LoRA on Nemotron 3 Nano with NeMo Automodel, on one cluster",
    "B": "Nemotron 3 Super in four stages",
    "C": "Llama 3.3 Nemotron Super 49B: SFT and GRPO",
    "D": "Nemotron 3 Nano: GRPO on 32 nodes",
    "E": "What the four ask of the project as a whole",
    "X": "Where the guides contradict themselves or each other",
}

INTRODUCTION = """\
# The four guides, promise by promise

This project implements four public guides: LoRA on Nemotron 3 Nano with NeMo Automodel, the four-stage recipe of \
Nemotron 3 Super, SFT and GRPO of Llama 3.3 Nemotron Super 49B, and GRPO of Nemotron 3 Nano on 32 nodes. This page \
lists each of their command lines, keys, files, values, checks and expected results, and says how far it is kept.

{states}

`tests/test_seeds.py` runs every command below and compares exit code and output, so a promise that is broken, or kept \
without being claimed here, fails a test. Only a row with nothing in its last column is merely stated. A row may not \
claim more than its evidence shows: a dry run that says "none: this could run" shows that a config composes, not that \
it trains. A command that fails counts only where the words of its error are asserted, and where a dry run lists \
problems, all of them are. A test that a row names is one that `.ci/run` runs, unless the state is *by hand*. The page \
is written by `tests/seeds_page.py` from `tests/seeds.yaml`; edit the table there.

The last column of each table names a command, a test or a file, after its kind. A *dry run* of a recipe is made for \
the guide's machine, which `--machine FILE` describes, because the machine of the tests has neither its GPUs nor its \
packages. Tests on *Slurm* use a real one with two nodes, in namespaces of the testing machine; where those are \
forbidden, they are skipped with a warning. A test of a *library* runs in the environment of an engine, with the real \
library. A *script* is a test that compares the text of scripts.
"""

PLACES = """\
## Where the folders of the guides are here

The guides type `cd src/nemotron/recipes/super3/stage0_pretrain`, among others. All families share one folder for each \
stage; the family is a word of the command, or `run.family=nano3` for a script. In the stage's folder, \
`python train.py --config config/tiny.yaml` works as the guide has it (B17.1).

| in the guides | here |
|---|---|
| `src/nemotron/recipes/super3/stage0_pretrain` | [`stages/pretrain`](../stages/pretrain/README.md) |
| `src/nemotron/recipes/super3/stage1_sft` | [`stages/sft`](../stages/sft/README.md) |
| `src/nemotron/recipes/super3/stage2_rl` | [`stages/rl`](../stages/rl/README.md) |
| `src/nemotron/recipes/super3/stage3_eval` | [`stages/eval`](../stages/eval/README.md) |
| `config/data_prep/default.yaml` of a stage | the section `data_prep` of `config/default.yaml` |
| `docs/nemo_runspec/nemo-run.md` | [clusters.md](clusters.md) |
"""

LINKED = """\
{count} rows of part B, marked with †, are not promises of the guide's own text, but of files that it links to: the \
READMEs of the four stages, their configs, and the page on env.toml.
"""


def page(rows: list[Row]) -> str:
    """The text of the page: counts, then one table for each guide."""
    states = "\n".join(f"- **{state}**: {meaning}" for state, meaning in STATES.items())
    linked = LINKED.format(count=sum(row.linked for row in rows))
    parts = [INTRODUCTION.format(states=states), "\n".join(_counts(rows)) + "\n", linked, PLACES]
    for letter, title in SECTIONS.items():
        lines = [f"## {title}", "", "| id | what | state | remark | shown by |", "|---|---|---|---|---|"]
        lines += [_line(row) for row in rows if row.ids[0].startswith(letter)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _counts(rows: list[Row]) -> list[str]:
    """How many rows of each part are in each state."""
    lines = [f"| part | {' | '.join(STATES)} | all |", f"|---|{'--:|' * (len(STATES) + 1)}"]
    for letter, title in SECTIONS.items():
        lines.append(_count_line(f"{letter}: {title}", [row for row in rows if row.ids[0].startswith(letter)]))
    return [*lines, _count_line("**all**", rows)]


def _count_line(title: str, rows: list[Row]) -> str:
    found = Counter(row.state for row in rows)
    return f"| {title} | {' | '.join(str(found[state]) for state in STATES)} | {len(rows)} |"


def _line(row: Row) -> str:
    shown = f"{row.evidence}: `{row.shown_by}`".replace("|", "\\|") if row.shown_by else ""
    cells = (", ".join(row.ids) + (" †" if row.linked else ""), row.what, row.state, row.why, shown)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    assert set(SECTIONS) == set(LAST)
    made = page(read_table()[0])
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != made:
        sys.exit(f"{PAGE.name} is out of date: run python tests/seeds_page.py")
