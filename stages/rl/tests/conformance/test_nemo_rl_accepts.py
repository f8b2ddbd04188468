"""Against the real NeMo-RL: it accepts every config we write, reads our rows, and verifies our answers.

Needs NeMo-RL's environment, and in NEMO_RL_CHECKOUTS a folder with one checkout of each version, by its name:

    PYTHONPATH=$NEMO_RL_CHECKOUTS/v0.7.0 python -m pytest -m nemo_rl stages/rl/tests/conformance
"""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from nemotron_engines.nemo_rl.generate import BASES, as_text, make_table
from nemotron_engines.nemo_rl.installation import Installation, require_known
from nemotron_engines.nemo_rl.translate import VERIFIER, Places, build
from nemotron_engines.nemo_rl.versions import TABLES, digest_of, load_base
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.validate import validate
from nemotron_shared.system.errors import UserError
from stages.rl.engines import nemo_rl
from stages.rl.schema import RLConfig

pytestmark = pytest.mark.nemo_rl

CONFIG = Path(nemo_rl.__file__).parents[2] / "config"
RECIPES = ["super3", "super3_rlvr", "super3_swe1", "super3_swe2", "super3_rlhf", "super49b", "tiny", "nano3",
           "drawers_nemo_rl", "lightning35", "lightning35_dapo"]  # fmt: skip
JUDGE = """
import json, sys
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError
from nemo_rl.algorithms.grpo import MasterConfig
OmegaConf.register_new_resolver("mul", lambda a, b: a * b)
for file in sys.argv[1:]:
    found = []
    try:
        TypeAdapter(MasterConfig).validate_python(OmegaConf.to_container(OmegaConf.load(file), resolve=True))
    except ValidationError as error:
        found = sorted([".".join(map(str, fault["loc"])), fault["type"]] for fault in error.errors())
    print(json.dumps(found))
"""


@pytest.fixture(scope="session")
def checkouts() -> Path:
    folder = os.environ.get("NEMO_RL_CHECKOUTS")
    if folder is None:
        pytest.fail("set NEMO_RL_CHECKOUTS to a folder with the checkouts v0.7.0 and nano-v3")
    return Path(folder)


def python(checkout: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run NeMo-RL's interpreter, which is the one of the tests, with a checkout on the path."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "NO_VCS_VERSION": "1"} | variables
    return subprocess.run(
        [sys.executable, *arguments], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )


def written(recipe: str, checkouts: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Path:
    """The config file that a run would write."""
    monkeypatch.setenv("PERSISTENT_CACHE", str(folder))
    composed = compose(CONFIG, recipe, ["engine.allow_experimental=true", *overrides])
    config = validate(RLConfig, resolve(composed.tree, lambda role, field: "x"), composed.origins)
    base = load_base(checkouts / config.engine.version, config.engine.base)
    places = Places(str(folder), str(folder / "t.jsonl"), str(folder / "v.jsonl"), str(folder), str(folder), "test")
    file = folder / "nemo_rl.yaml"
    file.write_text(yaml.safe_dump(build(config, "grpo", places, base), sort_keys=False))
    return file


@pytest.mark.parametrize("recipe", RECIPES)
def test_master_config_accepts_what_we_write(
    recipe: str, checkouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nemo_rl.algorithms.grpo import MasterConfig  # ty: ignore[import-not-found]

    overrides = {"tiny": ["engine=nemo_rl"], "nano3": ["engine.version=v0.7.0"]}.get(recipe, [])
    file = written(recipe, checkouts, tmp_path, monkeypatch, *overrides)
    MasterConfig(**yaml.safe_load(file.read_text()))


def test_what_we_write_for_nano_lacks_nothing_but_what_nvidias_own_config_lacks(
    checkouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program of that version judges no config, and its own one lacks keys that its types ask for."""
    file = written("nano3", checkouts, tmp_path, monkeypatch)
    theirs = checkouts / "nano-v3" / "examples" / "nemo_gym" / "grpo_nanov3.yaml"
    done = python(checkouts / "nano-v3", "-c", JUDGE, str(theirs), str(file))
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (json.loads(line) for line in done.stdout.strip().splitlines()[-2:])
    assert first == second
    assert {kind for _, kind in first} == {"missing", "int_type"}


def test_master_config_refuses_what_we_would_refuse(
    checkouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written("super3", checkouts, tmp_path, monkeypatch)
    values = yaml.safe_load(file.read_text())
    values["policy"]["megatron_cfg"]["tensor_model_parallel_size"] = "two"
    from nemo_rl.algorithms.grpo import MasterConfig  # ty: ignore[import-not-found]

    with pytest.raises(ValidationError, match="tensor_model_parallel_size"):
        MasterConfig(**values)


@pytest.mark.parametrize("version", ["v0.7.0", "nano-v3"])
def test_the_table_is_that_of_the_checkout(version: str, checkouts: Path) -> None:
    assert as_text(make_table(checkouts / version)) == (TABLES / f"{version}.json").read_text()


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "tiny"])
def test_nemo_rl_knows_the_keys_of_our_overrides_and_no_slip(
    recipe: str, checkouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_VCS_VERSION", "1")
    for slip in ((), ("++engine.overrides.policy.precison=bfloat16",)):
        composed = compose(CONFIG, recipe, ["engine.allow_experimental=true", *slip])
        config = validate(RLConfig, resolve(composed.tree, lambda role, field: "x"), composed.origins)
        checkout = checkouts / config.engine.version
        installation = Installation(checkout, load_base(checkout, config.engine.base), "python")
        with pytest.raises(UserError, match="did you mean 'precision'") if slip else nullcontext():
            require_known(installation, config.engine, "grpo", composed.origins, tmp_path / "log")


def test_our_reading_of_a_config_is_nemo_rls(checkouts: Path) -> None:
    from nemo_rl.utils.config import load_config  # ty: ignore[import-not-found]
    from omegaconf import OmegaConf

    for path in [path for paths in BASES.values() for path in paths]:
        theirs: Any = OmegaConf.to_container(load_config(checkouts / "v0.7.0" / path), resolve=False)
        assert digest_of(load_base(checkouts / "v0.7.0", path)) == digest_of(theirs)


def test_its_math_verifier_gives_a_right_answer_one_and_without_its_name_nothing() -> None:
    from nemo_rl.environments.math_environment import HFVerifyWorker  # ty: ignore[import-not-found]

    verify = HFVerifyWorker.__ray_metadata__.modified_class().verify
    answers = [r"The sum is \boxed{12}", r"The sum is \boxed{13}"]
    assert verify(answers, ["12", "12"], math_verify_impl=VERIFIER) == [1.0, 0.0]
    assert verify(answers, ["12", "12"]) == [0.0, 0.0]
