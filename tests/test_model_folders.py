"""A model artifact is a Hugging Face folder that loads whole and answers."""

from pathlib import Path

import pytest
from support import script, short


@pytest.mark.slow
def test_a_model_loads_without_a_missing_or_unexpected_key(run, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run(*script("pretrain"), *short("pretrain"))
    run(*script("sft"), *short("sft"))
    for stage in ("pretrain", "sft"):
        folder = tmp_path / "home" / "artifacts" / f"super3-{stage}-model" / "v1"
        model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert set(model.config.layers_block_type) == {"linear_attention", "moe", "full_attention"}
        tokenizer = AutoTokenizer.from_pretrained(folder)
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": "What is 7+5-3?"}], add_generation_prompt=True, return_tensors="pt"
        )
        out = model.generate(**prompt, max_new_tokens=4, do_sample=False)
        assert out.shape[1] > prompt["input_ids"].shape[1]
        assert torch.isfinite(model(**prompt).logits).all()
