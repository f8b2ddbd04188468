"""Settings of a generation_config.json that would change answers, and which of them are told."""

import json
from pathlib import Path

from transformers import GenerationConfig

from nemotron_shared.models.folder import ACTING, IDS, acting, left_out

ELSEWHERE = {
    *("max_length", "max_new_tokens", "do_sample"),  # each of our doors decides them
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size", "low_memory"),
    *("compile_config", "disable_compile", "continuous_batching_config"),
    *("output_attentions", "output_hidden_states", "output_logits", "output_scores", "return_dict_in_generate"),
    *("assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight", "assistant_lookbehind"),
    *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "max_matching_ngram_size"),
    *("prompt_lookup_num_tokens", "speculation_type", "target_lookbehind", "use_mtp"),  # faster, and the same tokens
    *("decoder_start_token_id", "transformers_version", "_from_model_config"),
}


def test_every_setting_of_the_library_is_known() -> None:
    assert {*GenerationConfig().to_dict()} == {*ACTING, *IDS, *ELSEWHERE}


def test_what_asks_for_nothing_is_not_told(tmp_path: Path) -> None:
    nothing = {"num_beams": 1, "typical_p": 1.0, "repetition_penalty": 1.0, "bad_words_ids": [], "min_length": 0,
               "eos_token_id": [2, 3], "max_new_tokens": 7, "do_sample": True, "top_k": None}  # fmt: skip
    assert acting(nothing) == {}
    asked = {"no_repeat_ngram_size": 1, "min_new_tokens": 1, "top_p": 0.9}
    assert acting(nothing | asked) == asked
    (tmp_path / "generation_config.json").write_text(json.dumps(nothing | asked | {"temperature": 0.6}))
    assert left_out(tmp_path, temperature=0.6, top_p=1.0) == "top_p 0.9, no_repeat_ngram_size 1, min_new_tokens 1"
    (tmp_path / "generation_config.json").write_text(json.dumps(nothing))
    assert left_out(tmp_path) is None
