"""Train two byte-level BPE tokenizers on the corpus, as folders that transformers and all peers can load.

`tok32k` splits text like GPT-2; `tok131k` like Nemotron 3 (the published tokenizer itself is not needed).
Ids 0, 1 and 2 are <unk>, <s> and </s>, so the end-of-document id is 2.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prep_bench.corpus import read_texts

NEMOTRON_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NAMED_SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
ANSWER_MARKUP = frozenset({"<think>", "</think>"})
"""Control tokens that stay tokens in documents with any setting."""
MARKUP = re.compile(r"<[^<>]{1,40}>")
"""Form of all names above."""
EOD = "</s>"
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['role'] == 'assistant' %}{%- generation %}{{- message['content'] + '<|im_end|>' }}"
    "{%- endgeneration %}{{- '\\n' }}{%- else %}{{- message['content'] + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


class Vocabulary(NamedTuple):
    name: str
    size: int
    specials: int
    nemotron: bool
    training_bytes: int
    """Approximate amount of evenly spread text for training; limits the time to a minute or two on two cores."""


VOCABULARIES = [
    Vocabulary("tok32k", 32_000, 16, nemotron=False, training_bytes=26_000_000),
    Vocabulary("tok131k", 131_072, 1_000, nemotron=True, training_bytes=68_000_000),
]


def train(vocabulary: Vocabulary, corpus: Path, text_bytes: int, folder: Path) -> Path:
    """Train into a folder, or use an existing one; returns the folder."""
    settings = {**vocabulary._asdict(), "text_bytes": text_bytes}
    marker = folder / "trained.json"
    if marker.is_file() and json.loads(marker.read_text()) == settings:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    every = max(1, round(text_bytes / vocabulary.training_bytes))
    tokenizer = trained(vocabulary, read_texts(corpus, every))
    if tokenizer.get_vocab_size() != vocabulary.size:
        print(f"{vocabulary.name}: the text gave {tokenizer.get_vocab_size():,} entries, not {vocabulary.size:,}")
    tokenizer.save(str(folder / "tokenizer.json"))
    write_settings(folder)
    marker.write_text(json.dumps(settings))
    return folder


def trained(vocabulary: Vocabulary, texts: Iterable[str]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=vocabulary.nemotron))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not vocabulary.nemotron)
    split = pre_tokenizers.Split(Regex(NEMOTRON_SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level]) if vocabulary.nemotron else byte_level
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary.size, special_tokens=list(special_tokens(vocabulary.specials)), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def special_tokens(count: int) -> Iterator[str]:
    yield from NAMED_SPECIALS
    yield from (f"<SPECIAL_{number}>" for number in range(len(NAMED_SPECIALS), count))


def control_names(tokenizer: Path) -> frozenset[str]:
    """Names that our preparation treats as text by default, and every peer as tokens."""
    added = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    return frozenset(token["content"] for token in added if token["special"])


def holds(text: str, names: frozenset[str]) -> bool:
    """Whether a text contains one of the names."""
    return not names.isdisjoint(MARKUP.findall(text))


def write_settings(folder: Path) -> None:
    named = {"bos_token": "<s>", "eos_token": EOD, "unk_token": "<unk>", "pad_token": "<unk>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(named, indent=2))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 10**30,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        **named,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
