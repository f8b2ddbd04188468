#!/usr/bin/env bash
# The guess: `AutoTokenizer.from_pretrained` of a folder with a tokenizer.json splits text as that file says. The
# `tokenizer_class` in tokenizer_config.json names a Python class and changes no token.
#
# What happens: classes of transformers 5 such as GPT2Tokenizer take the vocabulary and the merges from the file and
# build normaliser and pre-tokenizer anew. The pre-tokenizer of the file is dropped without a word, and
# `save_pretrained` writes a tokenizer.json without it. PreTrainedTokenizerFast keeps the file, unless config.json
# beside it has a `model_type` such as qwen2: then that kind's class is taken.
#
# Why it matters: text is tokenised otherwise than in the model's pretraining, here numbers. Training goes on with
# tokens that the model has never seen in these places, while programs that read tokenizer.json see others. Compare
# with `tokenizers.Tokenizer.from_file` before a run.
#
# Versions: transformers 5.23.0, tokenizers 0.23.3. Date: 2026-11-29.
#
# Seen:
#   transformers 5.23.0 tokenizers 0.23.3
#   the file itself:                               in| |1|0|2|4| |fi|les
#   PreTrainedTokenizerFast:                       in| |1|0|2|4| |fi|les
#   GPT2TokenizerFast:                             in| 1024| files
#   PreTrainedTokenizerFast with model_type qwen2: in| |1|0|2|4| files
#   tokenizer.json that GPT2TokenizerFast saved:   in| 1024| files
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 transformers==5.23.0 tokenizers==0.23.3 numpy==2.4.6

environment/bin/python - <<'PYTHON'
import json
import sys
from pathlib import Path

import tokenizers
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

print("transformers", transformers.__version__, "tokenizers", tokenizers.__version__)
TEXT = "in 1024 files"
bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False)
made = Tokenizer(models.BPE())
made.pre_tokenizer = bytes_alone
made.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=400,
    special_tokens=["</s>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
made.train_from_iterator([TEXT] * 10, trainer)
made.pre_tokenizer = pre_tokenizers.Sequence(  # every digit and every space by itself
    [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.Digits(individual_digits=True), bytes_alone]
)


def shown(tokens: list[str]) -> str:
    return "|".join(tokens).replace("Ġ", " ")


def loaded(name: str, tokenizer_class: str, model_type: str | None = None):
    """Write the folder and load it as everybody does."""
    folder = Path(name)
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    written = {"tokenizer_class": tokenizer_class, "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    if model_type:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return AutoTokenizer.from_pretrained(folder)


file = shown(made.encode(TEXT).tokens)
plain = shown(loaded("plain", "PreTrainedTokenizerFast").tokenize(TEXT))
gpt2 = loaded("gpt2", "GPT2TokenizerFast")
qwen2 = shown(loaded("qwen2", "PreTrainedTokenizerFast", "qwen2").tokenize(TEXT))
gpt2.save_pretrained("saved")
saved = shown(Tokenizer.from_file("saved/tokenizer.json").encode(TEXT).tokens)
gpt2 = shown(gpt2.tokenize(TEXT))
print("the file itself:                              ", file)
print("PreTrainedTokenizerFast:                      ", plain)
print("GPT2TokenizerFast:                            ", gpt2)
print("PreTrainedTokenizerFast with model_type qwen2:", qwen2)
print("tokenizer.json that GPT2TokenizerFast saved:  ", saved)

if plain != file or gpt2 == file or qwen2 == file or saved != gpt2:
    sys.exit("changed: another class keeps the file's pre-tokenizer, or drops it")
PYTHON
