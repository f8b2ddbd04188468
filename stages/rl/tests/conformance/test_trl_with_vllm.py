"""TRL generates with vLLM in one process, on a CPU: what it costs in probabilities, and that TRL corrects it.

Engine `trl` has no setting for it yet. Run with `ci/engine.sh vllm_cpu`, which makes an environment with both.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig

from nemotron_data.tokenizers.tiny import save_tokenizer

pytestmark = pytest.mark.vllm_cpu

PROGRAM = """
import json, sys
import torch
import vllm._custom_ops
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

# on a CPU, vLLM packs the weights for oneDNN and drops them, and TRL, which loads them anew before each step, finds no
# place for them
vllm._custom_ops._supports_onednn = False
folder = sys.argv[1]
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
    processing_class=AutoTokenizer.from_pretrained(folder),
    train_dataset=Dataset.from_list([{"prompt": f"What is {number}+5?"} for number in range(8)]),
    reward_funcs=[lambda completions, **_: [float(len(set(one))) for one in completions]],
    args=GRPOConfig(
        output_dir=folder + "/out", use_cpu=True, bf16=False, use_vllm=True, vllm_mode="colocate",
        vllm_max_model_length=128, max_completion_length=16, num_generations=4, per_device_train_batch_size=8,
        max_steps=2, logging_steps=1, learning_rate=1e-2, lr_scheduler_type="constant", report_to=[],
        save_strategy="no",
    ),
)
trainer.train()
print(json.dumps([entry for entry in trainer.state.log_history if "loss" in entry]))
"""


def test_two_steps_sample_with_the_weights_of_training(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=512, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=96, bos_token_id=2, eos_token_id=5, pad_token_id=0,
    )  # fmt: skip
    save_tokenizer(tmp_path)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    variables = os.environ | {
        "VLLM_TARGET_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": "", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    command = [os.environ["TRL_WITH_VLLM"], "-P", "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-5000:]
    for step in json.loads(done.stdout.splitlines()[-1]):
        # vLLM is asked for no type, and rounds float32 to bfloat16: 0.001 to 0.002 nats were measured. With the weights
        # of the step before it is 0.39
        assert 1e-4 < step["sampling/sampling_logp_difference/mean"] < 1e-2
        low, high = (step[f"sampling/importance_sampling_ratio/{end}"] for end in ("min", "max"))
        assert 0.9 < low < 1 < high < 1.1
