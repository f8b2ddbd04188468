"""The second part of a passport: settings and tokens, of which logits on given tokens show nothing.

Both folders are read as transformers reads them, so a key that one of them leaves at its default does not differ. A
GGUF file's keys are compared with what the same settings come to there.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, pre_tokenizers
from tokenizers.models import BPE

from nemotron_app.export import without_places
from nemotron_data.chat.prompt import Prompter
from nemotron_engines.modeling.build import load_tokenizer, read_config, token_faults
from nemotron_engines.modeling.stored import stored_in
from nemotron_serving.gguf_file import PRE_TOKENIZERS, Gguf, pre_tokenizer
from nemotron_serving.passport.parts import Part, few, reason
from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.models.folder import FILE as GENERATION
from nemotron_shared.runtime.models.folder import IDS, config_of, generation_of
from nemotron_shared.runtime.models.scales import QUANTIZED
from nemotron_shared.runtime.models.weights import ADAPTER_CONFIG

WITHOUT_EFFECT = {
    "_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype", "auto_map", "use_cache",
    "_attn_implementation", "_experts_implementation", "base_model_name_or_path", "_from_model_config",
    "initializer_range", "rescale_prenorm_residual", "tokenizer_file", "special_tokens_map_file",
}  # fmt: skip
"""Keys that change nothing of what a model computes; types are compared tensor by tensor."""
BASE = "the base model"
TRAINED_TOO = {*IDS, "eos_token", "pad_token", "chat_template", "quantization_config", "additional_special_tokens"}
"""Keys that a training may give other values than its base model's: how texts end, and templates."""
PREDICTING = "num_nextn_predict_layers"
TOKENIZER_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens", "model")
SPECIAL = ("tokenizer_config.json", "special_tokens_map.json")
TEXTS = (
    "What is 12345.678 + 9?", "½ of 10\u00b2 = 50; \u0663\u0664", "naïve café, ÅNGSTRÖM",
    "def f(x):\n\treturn x ** 2\n", "  two  spaces\n\n\nthree lines ", "don't; WE'LL see", "日本語のテキスト",
    "\U0001f469\u200d\U0001f467 and \U0001f1f3\U0001f1f4", "<|im_end|> is text; \u200b\ufeff",
    "https://a.example/x?y=1&z=%20#q", "aaaa" * 9,
)  # fmt: skip
"""Texts that tokenizers split in different ways: digits, fractions, contractions, white space, code, emoji."""
CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "What is 3+5?"}],
    [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Who are you?"}],
    [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "And?"},
    ],
    [{"role": "user", "content": "2+2?"}, {"role": "assistant", "reasoning_content": "4", "content": "It is 4."}],
)
ANSWERED = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}]
CLOSE = 1e-6
"""How far a float32 in a GGUF file may be from the number in config.json, in parts of it."""


def compare_folders(source: Path, target: Path, texts: Sequence[str], part: Part) -> None:
    """Config, generation defaults and tokenizer of two model folders.

    Args:
        texts: of rows that were trained on.
    """
    old, new = _resolved(source), _resolved(target)
    if part.other != BASE and QUANTIZED[0] not in old:
        new.pop(QUANTIZED[0], None)  # compared with the tensors instead
    differences("config.json", old, new, part)
    if (target / "config.json").is_file():
        before, after = (without_places(generation_of(folder), texts=True) for folder in (source, target))
        differences(GENERATION, before, after, part)
    compare_tokenizers(source, target, texts, part)


def compare_adapters(source: Path, target: Path, part: Part) -> None:
    """Rank, alpha and the rest of two adapters' configs; which layers, their tensors say."""
    named = {"target_modules": None, "target_parameters": None}
    before, after = (read_json(folder / ADAPTER_CONFIG) | named for folder in (source, target))
    differences(ADAPTER_CONFIG, before, after, part)
    part.facts.append(("adapter", f"rank {after.get('r')}, alpha {after.get('lora_alpha')}"))


def _settings_of(folder: Path, name: str) -> dict[str, Any]:
    """A file as an export has it: without the places of the machine that it was made on; empty without the file."""
    file = folder / name
    return without_places(read_json(file), texts=False) if file.is_file() else {}


def differences(file: str, before: Mapping[str, Any], after: Mapping[str, Any], part: Part) -> None:
    """Note each key that has another value, or only one of the two has; training may change some of a base model's."""
    known = [key for key in {**before, **after} if key not in WITHOUT_EFFECT]
    for key in known:
        old, new = before.get(key), after.get(key)
        if old != new:
            where, what = f"{file}: {key}", f"is {_short(new)}, and in {part.other} {_short(old)}"
            if part.other == BASE and (key in TRAINED_TOO or file == GENERATION):
                part.facts.append((where, what))
            else:
                part.find(where, what)
    part.facts.append((file, f"{len(known)} settings compared"))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) < 80 else f"{text[:77]}..."


def _resolved(folder: Path) -> dict[str, Any]:
    """All settings, also those that the file leaves out, if transformers knows the model."""
    try:
        found = read_config(folder).to_dict()
    except UserError:
        found = config_of(folder)
    return without_places(found, texts=True)


def check_folder(folder: Path, part: Part) -> None:
    """What can be wrong in a folder alone: settings that its weights contradict, ids without a token."""
    config, tensors = config_of(folder), stored_in(folder)
    if config.get(PREDICTING) and not any(name.startswith("mtp.") for name in tensors):
        part.find(f"config.json: {PREDICTING}", f"promises {config[PREDICTING]} block that predicts further tokens, "
                  "and the weights hold none (mtp.*)")  # fmt: skip
    try:
        for where, what, _ in token_faults(folder):
            part.find(where, what)
    except UserError:  # the tokenizer, as below, or a type of model that is not known here
        pass
    size = config.get("vocab_size")
    if not (folder / "tokenizer.json").is_file():
        part.not_run.append("without tokenizer.json, no text was compared")
        return
    if (tokenizer := _tokenizer_of(folder, part)) is None:
        return
    if size and len(tokenizer) > size:
        part.find("tokenizer.json", f"has {len(tokenizer)} tokens, and the model's vocabulary {size}")
    for name in ("bos", "eos", "pad"):
        own, told = getattr(tokenizer, f"{name}_token_id"), config.get(f"{name}_token_id")
        if isinstance(told, int) and own is not None and own != told and name != "eos":
            part.find(f"config.json: {name}_token_id", f"is {told}, and the tokenizer's {name}_token is {own}")
    _check_ends(folder, tokenizer, part)


def _tokenizer_of(folder: Path, part: Part) -> Any:
    """The tokenizer; None, and a note, where the model itself has none that could be loaded."""
    try:
        return load_tokenizer(folder)
    except UserError as error:
        part.not_run.append(f"texts, because the tokenizer cannot be loaded: {reason(error)}")
        return None


def _check_ends(folder: Path, tokenizer: Any, part: Part) -> None:
    """A model that is taught to close its answers with a token must be stopped by it."""
    if tokenizer.chat_template is None:
        part.not_run.append("the model has no chat template")
        return
    try:
        text = Prompter(tokenizer).template.render(ANSWERED, None, add_generation_prompt=False)  # ty: ignore
    except UserError as error:
        part.find("chat_template.jinja", f"refuses a question and its answer: {reason(error)}")
        return
    closing = tokenizer.encode(text[text.rindex("Hi!") + 3 :], add_special_tokens=False) if "Hi!" in text else []
    added = tokenizer.added_tokens_decoder
    closed = next((number for number in closing if number in added), None)
    if closed is None:
        return
    told = generation_of(folder).get("eos_token_id", tokenizer.eos_token_id)
    if closed not in (told if isinstance(told, list) else [told]):
        part.find("generation_config.json: eos_token_id", f"is {told}, and the chat template closes an answer with "
                  f"{added[closed].content} ({closed}): no answer would end")  # fmt: skip
    part.facts.append(("end of an answer", f"{added[closed].content} ({closed})"))


def compare_tokenizers(source: Path, target: Path, texts: Sequence[str], part: Part) -> None:
    """Vocabulary, steps, special tokens and chat template, in the files and in what they do."""
    files = [folder / "tokenizer.json" for folder in (source, target)]
    if not all(file.is_file() for file in files):
        if files[0].is_file():
            part.find("tokenizer.json", "is missing in the export")
        return
    for name in SPECIAL:  # both, though transformers lets the second win: other programs read the first
        differences(name, _settings_of(source, name), _settings_of(target, name), part)
    before, after = (read_json(file, most=None) for file in files)
    for name in TOKENIZER_PARTS:
        if before.get(name) != after.get(name):
            part.find(f"tokenizer.json: {name}", _what_differs(name, before.get(name), after.get(name)))
    if (old := _tokenizer_of(source, part)) is None:
        return
    try:
        new = load_tokenizer(target)
    except UserError as error:
        part.find("tokenizer.json", f"cannot be loaded: {reason(error)}")
        return
    _same_ids("tokenizer.json", [*TEXTS, *texts], old, new, part)
    if part.other == BASE and old.chat_template is None and new.chat_template is not None:
        part.facts.append(("chat template", "is new: the base model has none"))
    elif old.chat_template != new.chat_template:
        part.find("chat_template.jinja", _rendered_otherwise(old, new, texts))
    elif old.chat_template is not None:
        part.facts.append(("chat template", "the same text"))


def _what_differs(name: str, before: Any, after: Any) -> str:
    if name == "model" and isinstance(before, dict) and isinstance(after, dict):
        old, new = before.get("vocab") or {}, after.get("vocab") or {}
        if isinstance(old, dict) and isinstance(new, dict) and old != new:
            other = [token for token in {**old, **new} if old.get(token) != new.get(token)]
            return f"gives {len(other)} tokens other ids: {few(map(repr, other))}"
        return "splits words in another way"
    return f"is {_short(after)}, and in the model {_short(before)}"


def _same_ids(where: str, texts: Sequence[str], old: Any, new: Any, part: Part) -> None:
    same_ids(where, texts, old, (list(new.encode(text, add_special_tokens=False)) for text in texts), part)


def same_ids(where: str, texts: Sequence[str], tokenizer: Any, found: Iterable[list[int]], part: Part) -> None:
    """Note the first text whose ids are not those of the model's tokenizer.

    Args:
        found: ids of each text.
    """
    for text, after in zip(texts, found, strict=True):
        before = list(tokenizer.encode(text, add_special_tokens=False))
        if before != after:
            part.find(where, f"encodes {text[:40]!r} as {few(after, 8)}, and the model's as {few(before, 8)}")
            return
    part.facts.append((f"{where}, texts encoded", f"{len(texts)}, the same tokens"))


def _rendered_otherwise(old: Any, new: Any, texts: Sequence[str]) -> str:
    """Where another template makes another conversation."""
    if new.chat_template is None:
        return "is missing: no conversation could be rendered"
    if old.chat_template is None:
        return "is there, and the model has none"
    rows = [[{"role": "user", "content": text}, {"role": "assistant", "content": text}] for text in texts]
    for number, messages in enumerate([*CONVERSATIONS, *rows]):
        try:
            before, after = (Prompter(one).chat(messages).text for one in (old, new))
        except UserError as error:
            return f"is another text, and refuses a conversation: {reason(error)}"
        if before != after:
            same = next((n for n, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), 0)
            at = max(0, same - 20)
            return f"renders conversation {number} as ...{after[at:][:50]!r}, the model's as ...{before[at:][:50]!r}"
    return f"is another text, and renders {len(CONVERSATIONS) + len(rows)} conversations alike"


def compare_gguf(source: Path, file: Gguf, texts: Sequence[str], part: Part) -> None:
    """A GGUF file's keys and tokens, against those of the model."""
    config = _resolved(source)
    expected = _expected(config, file)
    for key, wanted in expected.items():
        found = file.settings.get(key)
        if isinstance(found, list) and not isinstance(wanted, list):  # one number for each layer, 0 where it has none
            found = next((one for one in found if one), 0)
        close = (
            isinstance(wanted, float) and isinstance(found, (int, float)) and abs(found - wanted) <= CLOSE * abs(wanted)
        )
        if found != wanted and not close:
            part.find(key, f"is {_short(found)}, and in the model {_short(wanted)}")
    part.facts.append((file.file.name, f"{len(expected)} settings compared"))
    old = load_tokenizer(source)
    tokens, wanted = file.settings["tokenizer.ggml.tokens"], old.get_vocab()
    other = [token for token, number in wanted.items() if number >= len(tokens) or tokens[number] != token]
    if other:
        part.find("tokenizer.ggml.tokens", f"{len(other)} tokens differ: {few(map(repr, other))}")
    template = file.settings.get("tokenizer.chat_template")
    if template != old.chat_template:
        part.find("tokenizer.chat_template", "is missing" if template is None else "is another text than the model's")
    pre, known = file.settings.get("tokenizer.ggml.pre"), pre_tokenizer(source)
    if known is not None and pre != known:
        part.find("tokenizer.ggml.pre", f"is {pre}, and the model's tokenizer splits as {known}")
    if pre in PRE_TOKENIZERS and file.settings.get("tokenizer.ggml.model") == "gpt2":
        _same_ids("tokenizer.ggml.merges", [*TEXTS, *texts], old, _Rebuilt(file), part)
    else:
        part.not_run.append(f"how llama.cpp splits texts as '{pre}' is not known here, so no text was encoded")


def _expected(config: dict[str, Any], file: Gguf) -> dict[str, Any]:
    """The keys of a GGUF file that the model's settings decide, with the values that they should have."""
    get = config.get
    inner = None if get("mamba_num_heads") is None else config["mamba_num_heads"] * config["mamba_head_dim"]
    kinds = get("layers_block_type")
    experts = "moe" in (kinds or ()) or ("expert_count" in file.settings and not kinds)
    found = {
        "block_count": len(kinds) if kinds else get("num_hidden_layers"),
        "context_length": get("max_position_embeddings"),
        "embedding_length": get("hidden_size"),
        "vocab_size": get("vocab_size"),
        "attention.head_count": get("num_attention_heads"),
        "attention.head_count_kv": get("num_key_value_heads"),
        "attention.key_length": get("head_dim"),
        "attention.layer_norm_epsilon": get("layer_norm_epsilon"),
        "attention.layer_norm_rms_epsilon": get("rms_norm_eps", get("layer_norm_epsilon")),
        "expert_count": get("n_routed_experts"),
        "expert_used_count": get("num_experts_per_tok"),
        "expert_group_count": get("n_group"),
        "expert_group_used_count": get("topk_group"),
        "expert_shared_count": get("n_shared_experts"),
        "expert_weights_norm": get("norm_topk_prob"),
        "expert_weights_scale": get("routed_scaling_factor"),
        "moe_latent_size": get("moe_latent_size"),
        "ssm.conv_kernel": get("conv_kernel"),
        "ssm.state_size": get("ssm_state_size"),
        "ssm.group_count": get("n_groups"),
        "ssm.inner_size": inner,
        "ssm.time_step_rank": get("mamba_num_heads"),
        "rope.freq_base": get("rope_theta") or (get("rope_parameters") or {}).get("rope_theta"),
        "tokenizer.ggml.bos_token_id": get("bos_token_id"),
        "tokenizer.ggml.eos_token_id": get("eos_token_id"),
        "tokenizer.ggml.padding_token_id": get("pad_token_id"),
    }
    needed = {"expert_weights_norm", "expert_weights_scale", "expert_used_count"} if experts else set()
    return {
        key: value[0] if isinstance(value, list) else value
        for key, value in found.items()
        if value is not None
        and (key in file.settings or key in needed)
        and (experts or not key.startswith(("expert_", "moe_")))
    }


class _Rebuilt:
    """The tokenizer that a GGUF file describes: its tokens, merges and the named way to split a text."""

    def __init__(self, file: Gguf) -> None:
        tokens, kinds = file.settings["tokenizer.ggml.tokens"], file.settings["tokenizer.ggml.token_type"]
        merges = [tuple(pair.split(" ")) for pair in file.settings["tokenizer.ggml.merges"]]
        self._made = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, merges))
        steps = PRE_TOKENIZERS[file.settings["tokenizer.ggml.pre"]]
        self._made.pre_tokenizer = pre_tokenizers.Sequence(
            [getattr(pre_tokenizers, step["type"])(**{k: v for k, v in step.items() if k != "type"}) for step in steps]
        )
        added = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (3, 4)]  # control, user-defined
        self._made.add_special_tokens([AddedToken(token, normalized=False) for token in added])

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """The text's ids."""
        return self._made.encode(text, add_special_tokens=add_special_tokens).ids
