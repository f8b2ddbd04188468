"""The second part of a passport: settings and tokens, of which logits on given tokens show nothing.

Both folders are read as transformers reads them, so a key that one of them leaves at its default does not differ. A
GGUF file's keys are compared with what the same settings come to there.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemotron_app.export import without_places
from nemotron_data.chat.prompt import Prompter
from nemotron_engines.modeling.build import load_tokenizer, read_config, token_faults
from nemotron_engines.modeling.stored import stored_in
from nemotron_serving.gguf_convert import BYTE, CONTROL, USER_DEFINED
from nemotron_serving.gguf_file import Gguf, pre_tokenizer
from nemotron_serving.gguf_limits import FIXED
from nemotron_serving.passport.parts import Part, few, reason
from nemotron_serving.passport.targets import ROTATED, is_unrolled
from nemotron_shared.models.folder import FILE as GENERATION
from nemotron_shared.models.folder import IDS, config_of, generation_of, settings_in
from nemotron_shared.models.scales import QUANTIZED
from nemotron_shared.models.weights import ADAPTER_CONFIG, ADAPTER_ROOT
from nemotron_shared.system.errors import UserError

WITHOUT_EFFECT = {
    "_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache",
    "_attn_implementation", "_experts_implementation", "_from_model_config", "initializer_range",
    "rescale_prenorm_residual", "tokenizer_file", "special_tokens_map_file",
}  # fmt: skip
"""Keys that change nothing of what a model computes; types are compared tensor by tensor."""
BASE, BASE_NAME = "the base model", "base_model_name_or_path"
TRAINED_TOO = {
    *IDS, "eos_token", "pad_token", "chat_template", "quantization_config", "additional_special_tokens", "auto_map",
    "truncation", "padding",
}  # fmt: skip
"""Keys that a training may give other values than its base model's: how texts end, templates, what it left behind."""
PREDICTING = "num_nextn_predict_layers"
SHORT = 80
"""Characters of a value that are shown."""
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
DEFAULT = "default"
"""The chat template that is used where a model has several."""
ADDED = (CONTROL, USER_DEFINED)
"""How a GGUF file marks tokens that are not ordinary text; those for a byte have a mark of their own."""
OF_NO_EFFECT = re.compile(
    r"GGUF\.|general\.|tokenizer\.|quantize\.|split\.|rope\.scaling\.(finetuned|original_context_length)|rope\.dimension_count"
    r"|(expert_|expert_shared_)?feed_forward_length"
)
"""Other keys of a GGUF file: about the file, compared elsewhere, or that the tensors' shapes contradict if wrong."""
NEUTRAL = (0, 1, "", "none")
"""Values of those that change nothing."""
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
    """Rank, alpha and the rest of two adapters' configs; servers' layout names each layer that it has matrices for."""
    before, after = (without_places(settings_in(folder / ADAPTER_CONFIG), texts=True) for folder in (source, target))
    layers = sorted({name.removeprefix(ADAPTER_ROOT).partition(".lora_")[0] for name in stored_in(target)})
    for told in (before, after):
        told["target_parameters"] = told.get("target_parameters") or None
    if is_unrolled(layers) or after.get("target_modules") == layers:
        before |= {"target_modules": layers, "target_parameters": None}
    if before.get(BASE_NAME) is None and after.get(BASE_NAME):  # trained on a folder, which it is not told
        part.not_run.append(f"whether {after[BASE_NAME]} is the base model: the adapter was trained on a folder")
        before[BASE_NAME] = after[BASE_NAME]
    differences(ADAPTER_CONFIG, before, after, part)
    part.facts.append(("adapter", f"rank {after.get('r')}, alpha {after.get('lora_alpha')}"))


def _settings_of(folder: Path, name: str) -> dict[str, Any]:
    """A file as an export has it: without the places of the machine that it was made on; empty without the file."""
    file = folder / name
    return without_places(settings_in(file), texts=False) if file.is_file() else {}


def differences(file: str, before: Mapping[str, Any], after: Mapping[str, Any], part: Part) -> None:
    """Note each key that has another value, or only one of the two has; training may change some of a base model's."""
    known = [key for key in {**before, **after} if key not in WITHOUT_EFFECT]
    for key in known:
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        where, what = f"{file}: {key}", _told(old, new, part.other)
        if part.other == BASE and (key in TRAINED_TOO or file == GENERATION):
            part.facts.append((where, what))
        else:
            part.find(where, what)
    part.facts.append((file, f"{len(known)} settings compared"))


def _told(old: Any, new: Any, other: str) -> str:
    if all(isinstance(one, dict) and isinstance(one.get("vocab"), dict) for one in (old, new)):  # of tokenizer.json
        ids, others = old["vocab"], new["vocab"]
        changed = [token for token in {**ids, **others} if ids.get(token) != others.get(token)]
        ids_differ = f"gives {len(changed)} tokens other ids: {few(map(repr, changed))}"
        return ids_differ if changed else "splits words in another way"
    if isinstance(old, list) and isinstance(new, list) and max(map(len, (_short(old), _short(new)))) == SHORT:
        lost, more = ([one for one in these if one not in those] for these, those in ((old, new), (new, old)))
        told = [f"lacks {few(map(_short, lost))}"] if lost else []
        told += [f"has {few(map(_short, more))}, unlike {other}"] if more else []
        return ", and ".join(told) or "is in another order"
    return f"is {_short(new)}, and in {other} {_short(old)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) < SHORT else f"{text[: SHORT - 3]}..."


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
    for key, value in config.items():
        if isinstance(value, float) and not math.isfinite(value):
            part.find(f"config.json: {key}", f"is {value}")
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
    """The tokenizer; None, and a finding, where it cannot be loaded."""
    try:
        return load_tokenizer(folder)
    except UserError as error:
        part.find("tokenizer.json", f"cannot be loaded: {reason(error).rpartition('cannot be loaded: ')[2]}")
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
    differences("tokenizer.json", *(settings_in(file, most=None) for file in files), part)
    try:
        old = load_tokenizer(source)
    except UserError as error:
        part.not_run.append(f"texts, because the model's tokenizer cannot be loaded: {reason(error)}")
        return
    if (new := _tokenizer_of(target, part)) is None:
        return
    every = [*TEXTS, *texts]
    same_ids("tokenizer.json", every, old, [new.encode(text, add_special_tokens=False) for text in every], part)
    if part.other == BASE and old.chat_template is None and new.chat_template is not None:
        part.facts.append(("chat template", "is new: the base model has none"))
    elif old.chat_template != new.chat_template:
        part.find("chat_template.jinja", _rendered_otherwise(old, new, texts))
    elif old.chat_template is not None:
        part.facts.append(("chat template", "the same text"))


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
    before, after = (templates_of(one) for one in (old, new))
    if before.keys() != after.keys():
        return f"is one of several: {few(after)}; the model has {few(before)}"
    if other := [name for name in before if name != DEFAULT and before[name] != after[name]]:
        return f"is another text for {few(other)}"
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


def templates_of(tokenizer: Any) -> dict[str, str | None]:
    """A tokenizer's chat templates by name."""
    template = tokenizer.chat_template
    return template if isinstance(template, dict) else {DEFAULT: template}


def compare_gguf(source: Path, file: Gguf, part: Part) -> None:
    """A GGUF file's keys and tokens, against those of the model."""
    config, tokenizer = _resolved(source), load_tokenizer(source)
    expected = _expected(config, file) | _expected_of_tokens(source, tokenizer, file)
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
    for key, value in file.settings.items():
        is_told = key in expected or OF_NO_EFFECT.match(key) or file.settings.get("general.architecture") not in ROTATED
        if value not in NEUTRAL and not is_told:
            part.find(key, f"is {_short(value)}, and the model has no such setting")
    tokens, kinds = (file.settings[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type"))
    wanted, added = tokenizer.get_vocab(), tokenizer.added_tokens_decoder
    other = [token for token, number in wanted.items() if number >= len(tokens) or tokens[number] != token]
    if other or len(tokens) != config.get("vocab_size", len(tokens)):
        part.find(
            "tokenizer.ggml.tokens", f"{len(tokens)} tokens, of which {len(other)} differ: {few(map(repr, other))}"
        )
    apart = [
        token
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind != BYTE and (number in added) != (kind in ADDED)
    ]
    if not other and (apart := [token for token in apart if token in wanted]):
        part.find("tokenizer.ggml.token_type", f"of {len(apart)} tokens, whether they are special: {few(apart)}")
    template, pre = (file.settings.get(f"tokenizer.{name}") for name in ("chat_template", "ggml.pre"))
    if template != templates_of(tokenizer).get(DEFAULT):
        part.find("tokenizer.chat_template", "is missing" if template is None else "is another text than the model's")
    if (known := pre_tokenizer(source)) is not None and pre != known:
        part.find("tokenizer.ggml.pre", f"is {pre}, and the model's tokenizer splits as {known}")
    own = settings_in(source / "tokenizer.json", most=None)
    if known is None or own.get("normalizer"):
        part.not_run.append(f"how llama.cpp splits texts as '{pre}' is not known here, so its merges were not compared")
        return
    merges = [one if isinstance(one, str) else " ".join(one) for one in own["model"]["merges"]]
    if file.settings.get("tokenizer.ggml.merges") != merges:
        part.find("tokenizer.ggml.merges", "are others than the model's, so texts are split into other tokens")


def _expected(config: dict[str, Any], file: Gguf) -> dict[str, Any]:
    """The keys of a GGUF file that the model's settings decide, with the values that they should have."""
    get = config.get
    inner = None if get("mamba_num_heads") is None else config["mamba_num_heads"] * config["mamba_head_dim"]
    kinds, rotation = get("layers_block_type"), get("rope_parameters") or {}
    experts = "moe" in (kinds or ()) or ("expert_count" in file.settings and not kinds)
    share = get("partial_rotary_factor") or rotation.get("partial_rotary_factor") or 1
    size = get("head_dim") or get("hidden_size", 0) // get("num_attention_heads", 1)
    found = {
        "block_count": len(kinds) if kinds else get("num_hidden_layers"),
        "context_length": get("max_position_embeddings"),
        "embedding_length": get("hidden_size"),
        "feed_forward_length": None if kinds else get("intermediate_size"),
        "vocab_size": get("vocab_size"),
        "attention.head_count": get("num_attention_heads"),
        "attention.head_count_kv": get("num_key_value_heads"),
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_epsilon": get("layer_norm_epsilon"),
        "attention.layer_norm_rms_epsilon": get("rms_norm_eps", get("layer_norm_epsilon")),
        "attention.sliding_window": get("sliding_window"),
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
        "rope.freq_base": get("rope_theta") or rotation.get("rope_theta"),
        "rope.dimension_count": None if kinds else int(size * share),
        "rope.scaling.type": rotation.get("rope_type", "default").replace("default", ""),
        "rope.scaling.factor": rotation.get("factor"),
    }
    fixed = FIXED.get(get("model_type", ""), {})
    needed = {"expert_used_count"} if experts else set()
    if experts:
        names = {"norm_topk_prob": "expert_weights_norm", "routed_scaling_factor": "expert_weights_scale"}
        needed |= {there for key, there in names.items() if key not in fixed}
    return {
        key: value[0] if isinstance(value, list) else value
        for key, value in found.items()
        if value and (key in file.settings or key in needed) and (experts or not key.startswith(("expert_", "moe_")))
    }


def _expected_of_tokens(source: Path, tokenizer: Any, file: Gguf) -> dict[str, Any]:
    """The same for its keys of tokens: special ids, and whether a text is given a first and a last one."""
    config = config_of(source)
    plain, whole = (tokenizer.encode("a", add_special_tokens=special) for special in (False, True))
    ends = generation_of(source).get("eos_token_id", tokenizer.eos_token_id)
    turn = file.settings.get("tokenizer.ggml.eot_token_id")
    found = {
        "model": "gpt2" if pre_tokenizer(source) else None,
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_id": config.get("eos_token_id"),
        "eot_token_id": turn if turn in (ends if isinstance(ends, list) else [ends]) else tokenizer.eos_token_id,
        "padding_token_id": config.get("pad_token_id"),
        "unknown_token_id": tokenizer.unk_token_id,
        "add_bos_token": whole[:1] != plain[:1],
        "add_eos_token": whole[-1:] != plain[-1:],
    }
    named = {f"tokenizer.ggml.{name}": value[0] if isinstance(value, list) else value for name, value in found.items()}
    return {key: value for key, value in named.items() if value is not None and (key in file.settings or value is True)}
