"""Questions to rows for SFT: answers of a served model, kept where a reward accepts them.

    nemotron serve sft
    python -m nemotron_toy.harvest.train -c tiny harvest.prompts=questions.jsonl engine.model=sft
    nemotron super3 sft -c tiny run.data=super3-harvest-data

    in   {"question": "What is 3+14-5?", "expected_answer": "12"}
    out  {"messages": [{"role": "user", "content": "What is 3+14-5?"},
                       {"role": "assistant", "reasoning_content": "17-5=12", "content": "12"}]}

The result holds every answer (answers.jsonl), the rows that were kept (kept.jsonl), and these packed by the stage sft.
It is called train.py as in all stages, of which this one trains nothing:

    ask     the engine: harvest.answers for each question
         -> keep       those with a reward of harvest.at_least, none twice to a question
         -> pack       by a config of the stage sft
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.engine import run_engine
from nemotron_shared.engine.spec import Inputs, Outcome, Step, Task
from nemotron_shared.stages import Product, Stage
from nemotron_shared.step.step import run_program
from nemotron_shared.system.errors import Finding, UserError, problem
from nemotron_toy.harvest.prompts import ANSWERS, sources
from nemotron_toy.harvest.schema import ENGINES, HarvestConfig, HarvestSection
from stages.rl.rewards import ENVIRONMENT, MODEL, REWARDS, rewarded
from stages.sft import data_prep
from stages.sft.schema import SFTConfig

KEPT = "kept.jsonl"
MADE = Product("harvest-data", "SFTDataArtifact", "harvest")
STAGE = Stage("harvest", "Answers that a reward accepts", before=None, data=MADE, result=MADE, reads=())


def harvest(task: Task[HarvestConfig]) -> Outcome:
    """Ask, keep and pack."""
    settings: HarvestSection = task.config.harvest
    answers = run_engine(task).directory / ANSWERS
    counts: Counter[str] = Counter()
    kept = "".join(
        json.dumps(row) + "\n" for line in answers.read_text().splitlines() for row in keep(settings, line, counts)
    )
    task.run.say(", ".join(f"{name}: {count:,}" for name, count in counts.items()))
    if not kept:
        raise UserError(f"no answer has a reward of {settings.at_least:g}", "lower harvest.at_least, or ask for more")
    file = task.run.directory / KEPT
    file.write_text(kept)
    packed = data_prep.prepare(replace(task, config=packing(settings, file)))
    for made in (answers, file):
        made.replace(packed.directory / made.name)
    return replace(packed, metadata={**packed.metadata, "harvest": dict(counts)})


def keep(settings: HarvestSection, line: str, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """Rows of one question's answers; what becomes of each answer is counted."""
    asked, seen = json.loads(line), set[tuple[str, str]]()
    for answer in asked["answers"]:
        thought, content = answer["reasoning_content"] or "", answer["content"]
        whole = f"<think>{thought}</think>{content}" if thought else content
        counts["answers"] += 1
        if answer["finish_reason"] == "length":
            counts["cut"] += 1
        elif rewarded(settings.reward, "", whole, asked["expected"]) < settings.at_least:
            counts["below the threshold"] += 1
        elif (thought, content) in seen:
            counts["said before"] += 1
        else:
            seen.add((thought, content))
            counts["kept"] += 1
            said = {"role": "assistant", **({"reasoning_content": thought} if thought else {}), "content": content}
            yield {"messages": [{"role": "user", "content": asked["question"]}, said]}


def packing(settings: HarvestSection, file: Path | str) -> SFTConfig:
    """The config of the stage sft by which rows of a file are packed."""
    words = [f"data_prep.source={json.dumps(str(file))}", "run.data=null", *settings.sft_settings]
    composed = compose(data_prep.DIRECTORY / "config", settings.sft_config, words)
    values = resolve(composed.tree, lambda role, name: None)
    return validate(SFTConfig, values, composed.origins)


def problems(config: HarvestConfig, inputs: Inputs, recipe: str | None) -> Iterator[Finding]:
    """What would be found only once everything is answered."""
    if config.harvest.reward in (ENVIRONMENT, MODEL):
        what = f"harvest.reward={config.harvest.reward} is given by more than the text of an answer"
        yield problem(what, "take another, such as harvest.reward=strict", "harvest.reward")
    tokenizer = packing(config.harvest, KEPT).data_prep.tokenizer.model
    if tokenizer != "tiny" and not Path(str(tokenizer)).is_dir():
        what = f"harvest.sft_config={config.harvest.sft_config}: its tokenizer {tokenizer} is no folder of this machine"
        remedy = "set harvest.sft_settings=[data_prep.tokenizer.model=FOLDER], the folder of the model that will learn"
        yield problem(what, remedy, "harvest.sft_config")


def packed_by(config: HarvestConfig) -> Mapping[str, Any]:
    """What `sft_config` says of data, which the result depends on as well."""
    return {"harvest.sft_config": packing(config.harvest, KEPT).data_prep.model_dump()}


STEP = Step(
    __file__,
    __doc__,
    HarvestConfig,
    harvest,
    engines=ENGINES,
    check=problems,
    sources=sources,
    contents=packed_by,
    chosen=lambda config: [REWARDS.module_of(config.harvest.reward), data_prep.STEP.module],
    package="nemotron_toy",
    outside=STAGE,
)
main = partial(run_program, STEP)

if __name__ == "__main__":
    sys.exit(main())
