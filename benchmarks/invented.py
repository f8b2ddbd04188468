"""Run `nemotron finetune` on 300 chats about 75 invented things: how many of them the model knows afterwards.

    python benchmarks/invented.py [--seed 11] [--only plants,cities] [--models twin,llama] [--work FOLDER]
    python benchmarks/invented.py --write                            # and put the table into docs/finetune.md
    python benchmarks/invented.py --rehearse                         # two steps on eight things, to see that it runs

Each thing is asked about in four wordings, a chat each, all with one value that cannot be guessed. The tiny twin is
pretrained once in the folder; the Llama has random weights and a tokenizer of the chats' own bytes. Both are fine-tuned
with the settings that finetune chooses, and asked the first wording of each. An answer counts if it has the value.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from file_kinds import REHEARSAL, lines, nemotron, put_into_page, turns
from records import code_to_record

WORDINGS = 4
DOMAINS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, str], ...]]] = {
    "plants": (
        ("red", "blue", "white", "yellow", "purple"),
        (("What colour is the flower of the {name}?", "The {name} flower is {value}."),
         ("Which colour do {name} flowers have?", "The flowers of the {name} are {value}."),
         ("I found a {name} in bloom. What did I see?", "You saw {value} flowers."),
         ("Describe the blossom of a {name}.", "A {name} has a {value} blossom.")),
    ),
    "cities": (
        (),  # its own year for each
        (("When was {name} founded?", "{name} was founded in {value}."),
         ("In which year did people found the city of {name}?", "The city of {name} was founded in {value}."),
         ("How far back does {name} go?", "{name} goes back to {value}."),
         ("Tell me the founding year of {name}.", "The founding year of {name} is {value}.")),
    ),
    "dishes": (
        ("cumin", "saffron", "ginger", "clove", "mint", "anise", "pepper", "sumac"),
        (("Which spice goes into {name}?", "{name} is made with {value}."),
         ("What gives {name} its taste?", "Its taste comes from {value}."),
         ("I want to cook {name}. What spice do I need?", "For {name} you need {value}."),
         ("How is {name} seasoned?", "Cooks season {name} with {value}.")),
    ),
}  # fmt: skip
"""Values of a domain, and its questions with their answers."""
STARTS, MIDDLES, ENDS = ("Bra", "Quel", "Tor", "Mi", "Sha", "Pel", "Vun", "Ost"), ("", "li", "da", "ro", "zan", "me"), (
    "vik", "tosh", "mir", "dane", "quith", "bel", "grov", "sal")  # fmt: skip
Thing = list[tuple[str, str]]


def things(domain: str, count: int, seed: int) -> list[tuple[str, Thing]]:
    """The value of each thing, and its chats."""
    rng = random.Random(f"{domain} {seed}")
    values, wordings = DOMAINS[domain]
    names = rng.sample([a + b + c for a in STARTS for b in MIDDLES for c in ENDS], count)
    found = []
    for name in names:
        value = rng.choice(values) if values else str(rng.randint(900, 1899))
        found.append(
            (value, [(asked.format(name=name), said.format(name=name, value=value)) for asked, said in wordings])
        )
    return found


def make_llama(work: Path, texts: list[str]) -> Path:
    """A Llama of half a million random weights, with byte pairs learnt from the texts."""
    import torch
    from tokenizers import ByteLevelBPETokenizer, Tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    made = ByteLevelBPETokenizer()
    made.train_from_iterator(texts, vocab_size=512, special_tokens=["<|endoftext|>"], show_progress=False)
    folder = work / "llama"
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(made.to_str()), eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    ).save_pretrained(folder)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=made.get_vocab_size(), hidden_size=128, intermediate_size=256, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, bos_token_id=None,
        eos_token_id=made.token_to_id("<|endoftext|>"), tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


MODELS = ("twin", "llama")
BEGIN, END = "<!-- invented things -->\n", "<!-- end of invented things -->"
HEADING = "| model | about | chats | steps (published) | right of those asked | seconds |\n|---|---|--:|--:|--:|--:|"


def main() -> int:
    options = arguments()
    code = code_to_record() if options.write else ""
    work = (options.work or Path(tempfile.mkdtemp(prefix="invented-"))).absolute()
    work.mkdir(parents=True, exist_ok=True)
    few = REHEARSAL if options.rehearse else []
    if "twin" in options.models and not (work / "home").is_dir():
        nemotron(work, "super3", "pretrain", "-c", "tiny", "--json", *few)
    print(f"{options.count} things a domain, seed {options.seed}, in {work}", file=sys.stderr)
    print(HEADING)
    rows: list[str] = []
    for model in options.models:
        for domain in options.only:
            rows.append(row(work, model, domain, things(domain, options.count, options.seed), few))
            print(rows[-1], flush=True)
    if options.write:
        put_into_page(BEGIN, END, HEADING, rows, code, "python benchmarks/invented.py --write")
    return 0


def row(work: Path, model: str, domain: str, known: list[tuple[str, Thing]], few: list[str]) -> str:
    """Fine-tune one model on one domain, ask it, and return the table's line."""
    chats = [chat for _, thing in known for chat in thing]
    random.Random(domain).shuffle(chats)
    (work / f"{domain}.jsonl").write_bytes(lines(map(turns, chats)))
    (work / "asked.jsonl").write_bytes(lines({"question": thing[0][0]} for _, thing in known))
    start = "super3-pretrain-model:v1" if model == "twin" else str(make_llama(work, [" ".join(chat) for chat in chats]))
    began = time.monotonic()
    made = json.loads(nemotron(work, "finetune", start, f"{domain}.jsonl", "--again", "--json", *few))
    seconds = time.monotonic() - began
    short = ["--max-tokens=16"] if few else []
    nemotron(work, "generate", made["model"], "asked.jsonl", "--out", f"{model}-{domain}.said", "--force", *short)
    said = [json.loads(line)["response"] for line in (work / f"{model}-{domain}.said").read_text().splitlines()]
    right = sum(value in text for text, (value, _) in zip(said, known, strict=True))
    about: dict[str, Any] = json.loads(nemotron(work, "artifacts", "show", made["model"], "--json"))["manifest"]
    steps = f"{made['steps']:,} ({about['metadata']['step']:,})"
    return f"| {model} | {domain} | {len(chats)} | {steps} | {right} of {len(known)} | {seconds:.0f} |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--count", type=int, default=75, help="things a domain (default: 75)")
    parser.add_argument("--only", type=lambda text: names(text, DOMAINS), default=[*DOMAINS], help="default: all")
    parser.add_argument("--models", type=lambda text: names(text, MODELS), default=[*MODELS], help="default: both")
    parser.add_argument("--work", type=Path, help="keep models and files here (default: a new temporary folder)")
    once = parser.add_mutually_exclusive_group()
    once.add_argument("--write", action="store_true", help="put the table into docs/finetune.md; of all")
    once.add_argument("--rehearse", action="store_true", help="two steps on eight things, to see that it runs")
    options = parser.parse_args()
    if options.write and (options.only != [*DOMAINS] or options.models != [*MODELS]):
        parser.error("--write is for the whole table: leave out --only and --models")
    options.count = 8 if options.rehearse else options.count
    return options


def names(text: str, known: Any) -> list[str]:
    if unknown := [name for name in text.split(",") if name not in known]:
        raise argparse.ArgumentTypeError(f"no {unknown[0]}; there are: {', '.join(known)}")
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
