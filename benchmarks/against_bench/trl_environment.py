"""GRPO in the environment `drawers` by TRL's own loop, with an `environment_factory`.

TRL samples with transformers' `generate`, calls one tool after the other, and trains on log-probabilities that it did
not sample with. It gets our kernels for the CPU, float32 and one thread, as ours has.
"""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from nemotron_data.gym.catalogue import find_environment
from nemotron_data.gym.client import Answer, Client, Cookies
from nemotron_data.gym.server import serving

PROMPTS, GENERATIONS, TURNS, TOKENS = 8, 8, 4, 200


class Step(NamedTuple):
    """Wall seconds of a step, those of them spent waiting for the environment, and the mean reward."""

    seconds: float
    environment: float
    reward: float


def trls(model: Path, steps: int, folder: Path) -> list[Step]:
    """The steps of TRL's GRPOTrainer."""
    with serving(find_environment("drawers"), folder / "drawers.log") as server:
        client = Client(server.port, timeout=60, connections=1)
        return trained(model, steps, folder, client)


def rows_for_trl(steps: int) -> Any:
    """The prompts of these steps, and the rows that the environments begin with."""
    from datasets import Dataset

    from nemotron_data.synthetic.episodes import beginnings

    rows = list(beginnings("drawers", 1, PROMPTS * steps))
    asked = [[{"role": "user", "content": one["responses_create_params"]["input"][0]["content"]}] for one in rows]
    return Dataset.from_list(
        [{"prompt": prompt, "row": json.dumps(one)} for prompt, one in zip(asked, rows, strict=True)]
    )


def settings_for_trl(steps: int, folder: Path) -> Any:
    """TRL's settings, as near to ours as they can be."""
    from stages.rl.engines.trl.library import GRPOConfig

    return GRPOConfig(
        output_dir=str(folder / "trl"), max_steps=steps, per_device_train_batch_size=PROMPTS * GENERATIONS,
        num_generations=GENERATIONS, max_completion_length=TOKENS, max_tool_calling_iterations=TURNS, beta=0.0,
        learning_rate=6e-4, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False,
        disable_tqdm=True, remove_unused_columns=False, dataloader_pin_memory=False,
    )  # fmt: skip


def tokenizer_for_trl(model: Path) -> Any:
    """The model's tokenizer, with a template that TRL reads calls of."""
    from trl.chat_template_utils import qwen3_template

    from nemotron_engines.modeling.build import load_tokenizer

    tokenizer: Any = load_tokenizer(model)
    tokenizer.response_template = qwen3_template  # TRL knows templates by their text, and ours is not among them
    tokenizer.chat_template = tokenizer.chat_template.replace("{%- if tools %}", "{%- if false %}")
    return tokenizer


def trained(model: Path, steps: int, folder: Path, client: Client) -> list[Step]:
    """Train with TRL's loop; its environments are objects whose methods are the tools."""
    from transformers import AutoModelForCausalLM, PrinterCallback, TrainerCallback

    from nemotron_engines.modeling.build import NEMOTRON_H, install_kernels, set_threads
    from stages.rl.engines.trl.library import GRPOTrainer

    set_threads(1)
    install_kernels(NEMOTRON_H)
    waited = 0.0

    def post(path: str, body: Any, cookies: Cookies) -> Answer:
        nonlocal waited
        began = time.monotonic()
        (answer,) = client.post([(path, body, cookies)])
        waited += time.monotonic() - began
        assert isinstance(answer, Answer), answer
        return answer

    class Drawers:
        def reset(self, row: str, **_: Any) -> None:
            self.row, self.cookies = json.loads(row), Cookies()
            post("/seed_session", self.row, self.cookies)

        def find(self, name: str) -> str:
            """Find a box.

            Args:
                name: of whom.
            """
            return post("/find", {"name": name}, self.cookies).text

        def open(self, box: str) -> str:
            """Open a box.

            Args:
                box: which.
            """
            return post("/open", {"box": box}, self.cookies).text

    def environment(completions: Any, environments: Any, **_: Any) -> list[float]:
        rewards = []
        for messages, played in zip(completions, environments, strict=True):
            said = messages[-1].get("content") or "" if messages[-1]["role"] == "assistant" else ""
            part = {"type": "output_text", "text": said, "annotations": []}
            output = [{"type": "message", "role": "assistant", "content": [part]}]
            verified = post("/verify", played.row | {"response": {"output": output}}, played.cookies)
            rewards.append(float(verified.fields()["reward"]))
        return rewards

    times: list[Step] = []

    class Clock(TrainerCallback):
        began, before = time.monotonic(), 0.0

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "reward" in (logs or {}):
                times.append(Step(time.monotonic() - self.began, waited - self.before, logs["reward"]))
                self.began, self.before = time.monotonic(), waited

    loaded = AutoModelForCausalLM.from_pretrained(model)
    trainer = GRPOTrainer(
        model=loaded,
        args=settings_for_trl(steps, folder),
        reward_funcs=[environment],
        train_dataset=rows_for_trl(steps),
        processing_class=tokenizer_for_trl(model),
        environment_factory=Drawers,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Clock())
    trainer.train()
    return times
