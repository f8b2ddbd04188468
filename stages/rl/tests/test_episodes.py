"""Training on episodes: whose tokens count, that all turns are sampled as they are trained, and what is left out."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import short

from nemotron_data.gym.environments.drawers import drawers
from nemotron_shared.config.environments import EnvironmentsSection
from stages.rl.engines.trl.batches import advantages_of
from stages.rl.engines.trl.sampling import SamplingTrainer
from stages.rl.train import main
from stages.sft.train import main as fine_tune

SHORT = ("-c", "drawers", "train.train_iters=4", "train.eval_interval=2", "train.eval_rows=8",
         "checkpoint.save_interval=2", "grpo.num_prompts_per_step=4", "data_prep.synthetic_problems=60",
         "scheduler.lr_warmup_iters=0", "logger.tensorboard=false")  # fmt: skip
Step = dict[str, Any]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a model that has learnt to call tools, if not always rightly."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEMOTRON_HOME", str(folder))
        words = ("-c", "drawers", "train.train_iters=90", "data_prep.synthetic_chats=1500", "logger.tensorboard=false")
        assert fine_tune([*words]) == 0
    return folder


@pytest.fixture
def store(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own with that model."""
    folder = tmp_path / "home"
    (folder / "artifacts").mkdir(parents=True)
    (folder / "artifacts" / "super3-sft-model").symlink_to(home / "artifacts" / "super3-sft-model")
    monkeypatch.setenv("NEMOTRON_HOME", str(folder))
    return folder


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Step]]:
    """What each pass was given, and whose tokens its figures were taken of."""
    seen: list[Step] = []
    compute = SamplingTrainer._compute_loss

    def noted(self: SamplingTrainer, model: Any, inputs: Step) -> Any:
        loss = compute(self, model, inputs)
        names = ("completion_ids", "completion_mask", "tool_mask", "advantages", "num_items_in_batch")
        counted = {"differences": self._differences.tokens, "means": self._means._tokens}
        seen.append({name: inputs[name].numpy() for name in names} | counted)
        return loss

    monkeypatch.setattr(SamplingTrainer, "_compute_loss", noted)
    yield seen


def lines_of(store: Path) -> list[Step]:
    (file,) = (store / "artifacts" / "super3-rl-model" / "v1").glob("metrics.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_the_environments_tokens_count_nowhere_and_all_turns_are_exact(store: Path, passes: list[Step]) -> None:
    assert main([*SHORT]) == 0
    steps = [line for line in lines_of(store) if "loss" in line]
    assert sum(line["environment/turns"] for line in steps) > len(steps), "some episodes have several turns"
    for line, one in zip(steps, passes, strict=True):
        own, padding = one["completion_mask"] * one["tool_mask"], one["completion_mask"]
        assert own.sum() < padding.sum()
        assert one["differences"] == one["means"] == one["num_items_in_batch"] == own.sum()
        assert line["completion_length"] == pytest.approx(own.sum() / len(own))
        assert line["environment/tokens"] == pytest.approx((padding.sum() - own.sum()) / len(own))
        assert (line["differing_tokens"], line["router_flips"], line["logprob_difference"]) == (0, 0, 0)
        last = [row[mask.nonzero()[0][-1]] for row, mask in zip(own, padding, strict=True)]
        assert all(last), "an episode ends with the model's own token"


@pytest.mark.slow
def test_masked_episodes_teach_nothing(
    store: Path, passes: list[Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(drawers.__file__).parent
    folder = tmp_path / "drawers"
    for file in ("drawers.py", "app.py", "configs/drawers.yaml"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        text = (source / file).read_text()
        broken = '        if self.world % 2:\n            raise RuntimeError("this world is broken")\n'
        (folder / file).write_text(text.replace("        used = any(", f"{broken}        used = any("))
    words = [*SHORT, f"engine.environments.servers=[{folder}]"]
    assert main(words) == 2, "the first failure stops"
    passes.clear()
    assert main([*words, "engine.environments.on_failure=mask"]) == 0
    for line, one in zip((line for line in lines_of(store) if "loss" in line), passes, strict=True):
        failed = (one["tool_mask"] * one["completion_mask"]).sum(1) == 0
        assert line["environment/failed"] == pytest.approx(failed.mean())
        assert not one["advantages"][failed].any()
        assert np.isfinite(line["reward"])


def test_a_failed_episode_is_compared_with_nothing() -> None:
    rewards = np.array([[1.0, np.nan, 0.0, 0.0], [np.nan, 1.0, np.nan, np.nan]])
    found = advantages_of(rewards, leave_one_out=True, normalize=True)
    alone = advantages_of(np.array([[1.0, 0.0, 0.0]]), leave_one_out=True, normalize=True)
    assert found[0].tolist() == [alone[0, 0], 0.0, alone[0, 1], alone[0, 2]]
    assert found[1].tolist() == [0.0] * 4


ENVIRONMENTS = EnvironmentsSection(
    servers=["drawers"], max_turns=4, max_episode_tokens=200, show_tools=False, timeout_seconds=60.0, connections=8,
    on_failure="stop",
)  # fmt: skip
GIVEN = "engine.environments=" + json.dumps(ENVIRONMENTS.model_dump()).replace('"', "").replace(": ", ":")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rewards=[{name: environment, weight: 1.0}]"], "the reward 'environment' comes from environments"),
        ([GIVEN], "the environments' reward is not among the rewards"),
        ([GIVEN, "rewards=[{name: environment, weight: 1.0}]", "engine.strategy=fsdp2"], "different numbers of turns"),
        ([GIVEN.replace("[drawers]", "[drawer]")], "no environment named 'drawer'"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_runs(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    assert main([*short("rl"), *words]) == 2
    assert said in capsys.readouterr().err
