"""Fine-tuning with the real NeMo-RL: it accepts the recipe, and reads conversations with its own code.

Needs NeMo-RL's environment, and in NEMO_RL_CHECKOUTS a folder with the checkout v0.7.0:

    PYTHONPATH=$NEMO_RL_CHECKOUTS/v0.7.0 python -m pytest -m nemo_rl stages/sft/tests/conformance
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_engines.nemo_rl.translate import Places, build
from nemotron_engines.nemo_rl.versions import load_base
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.validate import validate
from stages.sft.engines import nemo_rl
from stages.sft.schema import SFTConfig

pytestmark = pytest.mark.nemo_rl

CONFIG = Path(nemo_rl.__file__).parents[2] / "config"


@pytest.fixture
def checkout() -> Path:
    folder = os.environ.get("NEMO_RL_CHECKOUTS")
    if folder is None:
        pytest.fail("set NEMO_RL_CHECKOUTS to a folder with the checkout v0.7.0")
    return Path(folder) / "v0.7.0"


def test_master_config_accepts_the_recipe_of_super_49b(checkout: Path, tmp_path: Path) -> None:
    from nemo_rl.algorithms.sft import MasterConfig  # ty: ignore[import-not-found]

    composed = compose(CONFIG, "super49b", ["engine.allow_experimental=true"])
    config = validate(SFTConfig, resolve(composed.tree, lambda role, field: "x"), composed.origins)
    places = Places(str(tmp_path), None, None, str(tmp_path), str(tmp_path), "test")
    values = build(config, "sft", places, load_base(checkout, config.engine.base))
    judged = MasterConfig(**yaml.safe_load(yaml.safe_dump(values)))
    assert judged.sft.max_num_steps == 50


def test_the_parallel_plan_of_super_49b_can_be_imported(checkout: Path) -> None:
    from examples.custom_parallel.llama_nemotron_super_49b_custom_plan import (  # ty: ignore[import-not-found]
        custom_parallel_plan,
    )

    assert "model.layers.*.self_attn.q_proj" in custom_parallel_plan


def test_conversations_go_through_nemo_rls_own_code_without_a_gpu(checkout: Path, tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "What is 3+4?"}, {"role": "assistant", "content": "3+4 is 7."}]
    (tmp_path / "chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 8)
    provide_tokenizer("tiny", tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "nemotron_h"}')
    (tmp_path / "model" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    engine = ["engine=nemo_rl", f"engine.checkout={checkout}", "engine.runner=python"]
    chats = ["run.data=null", f"engine.train_chats={tmp_path}/chats.jsonl", "engine.stop_before_training=true"]
    command = [sys.executable, "-m", "stages.sft.train", "-c", "tiny", *engine, *chats, f"run.model={tmp_path}/model"]
    own = {"NEMOTRON_HOME": str(tmp_path / "home"), "NO_VCS_VERSION": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "reads 8 rows to train and 0 to validate" in done.stderr
