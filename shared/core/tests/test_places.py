"""Links at paths of the user's choice replace what is ours, and nothing else."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemotron_shared.artifacts import Store
from nemotron_shared.config.training import CheckpointSection, LoggerSection, TrainingConfig
from nemotron_shared.machine.machine import Machine
from nemotron_shared.step.places import place_problems, show_result, show_run
from nemotron_shared.system.errors import UserError

NAME = "super3-sft-model"
SETTINGS = {"publish_to": "results/mine", "log_dir": "logs", "checkpoint_dir": "checkpoints"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "home")


def configured(**settings: str | None) -> Any:
    told: dict[str, Any] = dict.fromkeys(SETTINGS) | settings
    sections = {
        "run": SimpleNamespace(publish_to=told["publish_to"]),
        "logger": LoggerSection.model_construct(log_dir=told["log_dir"]),
        "checkpoint": CheckpointSection.model_construct(checkpoint_dir=told["checkpoint_dir"]),
    }
    return TrainingConfig.model_construct(**sections)


def planned(store: Store, run: str = "one", version: int = 1, **settings: str | None) -> tuple[Any, Any, Any]:
    """A plan, its run and what that made, as far as links ask for them; the folders are there."""
    folder, result = store.home / "runs" / f"{NAME}-{run}", store.root / NAME / f"v{version}"
    for one in (folder / "checkpoints", result):
        one.mkdir(parents=True, exist_ok=True)
    run = SimpleNamespace(directory=folder, checkpoints=folder / "checkpoints")
    plan = SimpleNamespace(config=configured(**(SETTINGS | settings)), store=store, name=NAME, run=run)
    return plan, run, SimpleNamespace(path=result)


def names(folder: str = ".") -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def problems(store: Store, **settings: str | None) -> list[str]:
    config = configured(**settings)
    return [
        f"{found.key}: {found.message}" for found in place_problems(config, NAME, store, Machine.here(store.home, 1))
    ]


def test_links_lead_to_the_run_and_then_to_the_result(store: Store) -> None:
    plan, run, made = planned(store)
    assert problems(store, **SETTINGS) == []
    for _ in range(2):  # as a run that is continued
        show_run(plan)
        assert (Path("logs").readlink(), Path("checkpoints").readlink()) == (plan.run.directory, run.checkpoints)
        assert not Path("results").exists()
    for _ in range(2):  # as a result that is used again
        show_result(plan, made)
        assert (Path("results/mine").readlink(), Path("checkpoints").readlink()) == (made.path, made.path)
    assert problems(store, **SETTINGS) == []


def test_a_later_run_and_a_later_version_take_the_links_over(store: Store) -> None:
    plan, _, made = planned(store)
    show_run(plan)
    show_result(plan, made)
    plan, run, made = planned(store, run="two", version=2)
    show_run(plan)
    assert Path("checkpoints").readlink() == run.checkpoints
    show_result(plan, made)
    assert Path("results/mine").readlink() == made.path
    assert names() == ["checkpoints", "home", "logs", "results"]


def test_empty_folders_are_replaced_and_logs_go_into_one_that_holds_files(store: Store) -> None:
    for name in ("logs", "checkpoints", "results/mine"):
        Path(name).mkdir(parents=True)
    Path("logs/slurm-1.out").touch()
    assert problems(store, **SETTINGS) == []
    plan, _, made = planned(store)
    show_run(plan)
    show_result(plan, made)
    assert names("logs") == ["slurm-1.out", plan.run.directory.name]
    assert (Path("logs") / plan.run.directory.name).readlink() == plan.run.directory
    assert all(Path(name).readlink() == made.path for name in ("results/mine", "checkpoints"))


def test_what_is_not_ours_is_refused_before_the_work_and_left_alone(store: Store) -> None:
    here = Path.cwd()
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    Path("link").symlink_to("full")
    Path("other").symlink_to(store.root / "super3-rl-model" / "v1")
    said = {
        "full": f"{here / 'full'} holds something already",
        "full/notes.txt": f"{here / 'full/notes.txt'} is a file",
        "full/notes.txt/below": f"{here / 'full/notes.txt'}: not a folder that this account can write to",
        "link": f"{here / 'link'} is a link to full",
        "other": f"{here / 'other'} is a link to {store.root / 'super3-rl-model/v1'}",
        str(store.home / "mine"): f"{store.home / 'mine'} is inside the store",
    }
    for path, what in said.items():
        assert problems(store, publish_to=path) == [f"run.publish_to: {what}"]
    plan, _, made = planned(store, publish_to="full", checkpoint_dir="link", log_dir=None)
    with pytest.raises(UserError, match=r"checkpoint\.checkpoint_dir: .*link is a link to full"):
        show_run(plan)
    with pytest.raises(UserError, match="is a link to full"):
        show_result(plan, made)
    assert Path("full/notes.txt").read_text() == "mine" and Path("link").readlink() == Path("full")
    same = problems(store, publish_to="mine", checkpoint_dir="./mine")
    assert same == ["run.publish_to: run.publish_to and checkpoint.checkpoint_dir name the same path"]
