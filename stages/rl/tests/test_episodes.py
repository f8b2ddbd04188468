"""Training on episodes: whose tokens count, that all turns are sampled as they are trained, and what is left out."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import EPISODES, learn_to_call_tools, short

from nemotron_data.gym.environments.drawers import drawers
from nemotron_shared.config.environments import EnvironmentsSection
from nemotron_shared.tracking.completions import read_completions
from stages.rl.engines.trl.batches import advantages_of
from stages.rl.engines.trl.sampling import SamplingTrainer
from stages.rl.train import main

Step = dict[str, Any]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a model that has learnt to call tools, if not always rightly."""
    folder = tmp_path_factory.mktemp("home")
    learn_to_call_tools(folder)
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
    assert main([*EPISODES]) == 0
    steps = [line for line in lines_of(store) if "loss" in line]
    assert sum(line["environment/turns"] for line in steps) > len(steps), "some episodes have several turns"
    (kept,) = store.glob("runs/super3-rl-model-*/completions.jsonl")
    found, damage = read_completions(kept)
    assert damage == [] and {one.step for one in found} == {line["step"] for line in steps}
    for one in found:
        assert one.turns is not None and one.turns_in_all == len(one.turns)
        assert one.tokens == sum(turn.tokens for turn in one.turns if turn.by == "model")
        assert one.rewards["environment"] is not None and one.ended in ("answered", "turns", "tokens", "cut")
    assert any(one.calls and "<tool_call>" in one.turns[0].text and one.turns[1].by == "environment" for one in found)
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
    folder = drawers_with("verify", 'if self.world % 2: raise RuntimeError("this world is broken")', tmp_path)
    words = [*EPISODES, f"engine.environments.servers=[{folder}]"]
    assert main(words) == 2, "the first failure stops"
    passes.clear()
    assert main([*words, "engine.environments.on_failure=mask"]) == 0
    for line, one in zip((line for line in lines_of(store) if "loss" in line), passes, strict=True):
        failed = (one["tool_mask"] * one["completion_mask"]).sum(1) == 0
        assert line["environment/failed"] == pytest.approx(failed.mean())
        assert not one["advantages"][failed].any()
        own = (one["tool_mask"] * one["completion_mask"]).sum()
        assert line["completion_length"] == pytest.approx(own / (~failed).sum()), "of episodes that did not fail"
        assert np.isfinite(line["reward"])


FAULTS = {
    "killed": ("open", "os.kill(os.getpid(), signal.SIGKILL)", "its server ended (signal 9)"),
    "slow": ("open", "time.sleep(300)", "POST /open: no answer within 3 s"),
    "broken": ("open", 'raise RuntimeError("a bug")', 'RuntimeError: a bug"}'),
    "wrong JSON": (
        "verify",
        # `loads` stays, because another thread may be reading a request
        '__main__.json = types.SimpleNamespace(dumps=lambda *_, **how: "<html>", loads=__main__.json.loads)',
        "no JSON",
    ),
    "422": ("verify", 'raise __main__.BadRequest(422, {"detail": "no such row"})', "POST /verify: status 422"),
    "no reward": ("verify", 'return {"reward": None}', "no finite reward: None"),
}
"""Where an episode of drawers fails, with which statement, and what is said of it."""


def drawers_with(method: str, statement: str, folder: Path) -> Path:
    """The shipped environment with a statement at the beginning of a method; it runs in its server."""
    source = Path(drawers.__file__).parent
    for file in ("drawers.py", "app.py", "configs/drawers.yaml"):
        (folder / "drawers" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "drawers" / file).write_text((source / file).read_text())
    place = folder / "drawers" / "drawers.py"
    head, begin, rest = place.read_text().partition(f"    def {method}(")
    signature, docstring, body = rest.split('"""', 2)
    imports = "import __main__, os, signal, time, types\n"
    place.write_text(f'{imports}{head}{begin}{signature}"""{docstring}"""\n        {statement}{body}')
    return folder / "drawers"


def server_of(said: str) -> int:
    return int(re.findall(r"environment 'drawers': port \d+, process (\d+)", said)[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_an_environment_ends_the_training_with_one_error(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    method, statement, reason = FAULTS[name]
    folder = drawers_with(method, statement, tmp_path)
    seconds = 3 if name == "slow" else 60  # the others may take longer where the machine does other work
    words = (f"engine.environments.servers=[{folder}]", f"engine.environments.timeout_seconds={seconds}")
    assert main([*EPISODES, *words]) == 2
    said = capsys.readouterr().err
    (error,) = [line for line in said.splitlines() if "error:" in line]
    assert "environment 'drawers': " in error and reason in error
    assert not Path(f"/proc/{server_of(said)}").exists()
    assert not (store / "artifacts" / "super3-rl-model").exists()


@pytest.mark.slow
def test_a_tool_result_of_a_megabyte_ends_its_episode_and_not_the_training(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = drawers_with("open", 'return {"key": "x" * (1 << 20)}', tmp_path)
    assert main([*EPISODES, f"engine.environments.servers=[{folder}]"]) == 0
    steps = [line for line in lines_of(store) if "loss" in line]
    assert any(line["environment/out_of_tokens"] > 0 for line in steps)
    assert all(line["environment/failed"] == 0 for line in steps)
    assert not Path(f"/proc/{server_of(capsys.readouterr().err)}").exists()


@pytest.mark.slow
def test_an_environment_that_is_not_replayable_is_named(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*EPISODES]) == 0
    assert "replayable" not in capsys.readouterr().err, "the shipped ones are known to be"
    # 32 random bits: a reward of one bit would now and then be the same when an episode is played again
    folder = drawers_with("verify", 'return {"reward": int.from_bytes(os.urandom(4), "big") / 2**32}', tmp_path)
    assert main([*EPISODES, f"engine.environments.servers=[{folder}]"]) == 0
    said = capsys.readouterr().err.splitlines()
    (known,) = [line for line in said if f"environment '{folder}': not known to be replayable" in line]
    assert f"nemotron env try {folder}" in known
    (found,) = [line for line in said if "environment 'drawers': not replayable" in line]
    first, again = re.findall(r"'reward (0\.\d+)'", found)
    assert first != again


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
