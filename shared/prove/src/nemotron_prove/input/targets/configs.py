"""YAML that people write, and settings on the command line."""

from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import yaml

from nemotron_app.check.expectations import read_expectations
from nemotron_app.recipes import composed
from nemotron_engines.modeling.architecture import load_architecture
from nemotron_prove.input.second import fault_of, is_count, is_number, require, written
from nemotron_prove.input.target import WORD, Files, Target, word_of, words
from nemotron_shared.config.files import YAML_LOADER, parsed, read_text
from nemotron_shared.config.validate import validate

PATTERN = "hybrid_override_pattern"
SIZES = ("hidden_size", "num_attention_heads", "n_routed_experts", "vocab_size")
STAGE = "sft"


def _yaml() -> list[Files]:
    text = yaml.safe_dump({"a": {"b": [1, 2.5, True, None, "x"]}, "c": "text", "d": [{"e": 1}, {"e": 2}]})
    return [{"mine.yaml": text.encode()}, {"mine.yaml": b"base: &x {a: 1}\nmore:\n  <<: *x\n  b: 'y'\n"}]


def _parse(folder: Path, files: Files) -> object:
    return parsed(folder / "mine.yaml", read_text(folder / "mine.yaml"))


def _yaml_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        content = files["mine.yaml"]
        require(len(content) <= 1_000_000, "a file of more than a million bytes")
        try:
            text = content.decode()
        except UnicodeDecodeError:
            require(False, "not UTF-8")
        try:
            documents = list(yaml.compose_all(text, yaml.SafeLoader))  # PyYAML's own, not libyaml's
        except (yaml.YAMLError, RecursionError):
            documents = None
        require(documents is None or len(documents) <= 1, "several documents")
        require(_values(made) <= 20_000, "more values than people write")

    return fault_of(read)


def _values(node: object, depth: int = 0) -> int:
    require(depth <= 60, "nested deeper than people write")
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list | tuple | set) else ()
    return 1 + sum(_values(one, depth + 1) for one in inner)


def _architecture() -> list[Files]:
    fields = {"hidden_size": 64, "num_attention_heads": 4, PATTERN: "ME*-", "n_routed_experts": 4, "vocab_size": 512}
    return [{"mine.yaml": yaml.safe_dump(fields).encode()}]


def _architecture_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, dict)
        require(all(isinstance(name, str) for name in made), "a field that no name has")
        require(all(is_count(made[name]) for name in SIZES if name in made), "a size that is none")
        layers = made.get(PATTERN)
        require(layers is None or (isinstance(layers, str) and set(layers) <= set("ME*-")), "layers of no kind")

    return fault_of(read)


def _config() -> list[Files]:
    text = b"defaults: [tiny, _self_]\ntrain: {train_iters: 20, global_batch_size: 8}\noptimizer:\n  lr: 0.001\n"
    base = b"defaults: [default, _self_]\ndata_prep:\n  source: chats.jsonl\nrun: {seed: 3}\n"
    return [{"mine.yaml": text}, {"mine.yaml": base}, {"mine.yaml": b"defaults: [b, _self_]\n", "b.yaml": text}]


def _validated(choice: str, overrides: list[str]) -> Any:
    """Composed and checked, as far as a run does it before any artifact is known."""
    config = composed(STAGE, choice, overrides)
    values = _plain(config.tree)
    schema = import_module(f"stages.{STAGE}.schema").SFTConfig
    validate(schema, values, config.origins)
    return values


def _plain(tree: Any) -> dict[str, Any]:
    """References stand for texts here: what they mean is known only in a run."""
    from nemotron_shared.config.references import resolve

    return resolve(tree, lambda role, field: "x")


def _compose(folder: Path, files: Files) -> Any:
    return _validated(str(folder / "mine.yaml"), [])


def _config_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, dict)
        known = {
            "run",
            "engine",
            "model",
            "data_prep",
            "train",
            "optimizer",
            "scheduler",
            "checkpoint",
            "logger",
            "lora",
        }
        require(set(made) <= known, "a section that the README does not have")
        train, optimizer = made["train"], made["optimizer"]
        for name in ("train_iters", "micro_batch_size", "global_batch_size"):
            number = written(train[name])
            require(number is None or (is_count(number) and number > 0), f"{name} that is no count")
        rate = written(optimizer["lr"])
        require(is_number(rate) and rate > 0, "a learning rate that is none")
        require(is_count(written(made["run"]["seed"])), "a seed that is none")

    return fault_of(read)


def _overrides() -> list[Files]:
    return words(
        "train.train_iters=20",
        "optimizer.lr=1e-3",
        "engine=transformers",
        "run.seed=3",
        "++run.home='a b'",
        "data_prep.source=[a.jsonl,'b c.jsonl']",
    )


def _override(folder: Path, files: Files) -> Any:
    return _validated("tiny", [word_of(files)])


def _override_fault(files: Files, made: object) -> str | None:
    key = word_of(files).partition("=")[0]
    return _config_fault(files, made) or (None if key.strip("+~ /") else "a setting without a name")


def _expectations() -> list[Files]:
    one = {
        "id": "final-loss",
        "what": "training loss at the end",
        "metric": "loss",
        "how": "last",
        "window": 5,
        "at_step": 50,
        "pass": {"at_least": 1.2, "at_most": 1.8},
        "watch": {"at_most": 2.2},
        "remedy": "look",
    }
    lines = {
        "id": "oom",
        "what": "lines about memory",
        "line": "out of memory",
        "how": "count",
        "pass": {"at_most": 0},
        "remedy": "x",
    }
    value = {"title": "a run", "when": {"run.family": "super3"}, "expectations": [one, lines]}
    return [{"mine.yaml": yaml.safe_dump(value, sort_keys=False).encode()}]


def _expectations_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        value = yaml.load(files["mine.yaml"], YAML_LOADER)
        found = value["expectations"]
        names = [one["id"] for one in found]
        require(len({*names}) == len(names), "an expectation that stands twice")
        for one in found:
            for ends in (one.get("pass"), one.get("watch")):
                bounds = [written(ends.get(end)) for end in ("at_least", "at_most")] if ends else []
                require(all(bound is None or is_number(bound) for bound in bounds), "a limit that is no number")
                if len(bounds) == 2 and None not in bounds:
                    require(bounds[0] <= bounds[1], "limits in which nothing lies")

    return fault_of(read)


def in_hydra(files: Files, random: Random) -> Files:
    """An override in Hydra's own grammar, or nearly."""
    keys = (
        "train.train_iters",
        "optimizer.lr",
        "run.seed",
        "engine",
        "engine.name",
        "data_prep.source",
        "defaults",
        "",
    )
    values = (
        "1",
        "-1",
        "1e400",
        "nan",
        "null",
        "[1,2",
        "{a:b}",
        "${oc.env:HOME}",
        "${x}",
        "a,b",
        "range(1,9)",
        "'",
        "\\",
        "glob(*)",
        "[[[[1]]]]",
        "sort(3,1)",
        "x" * 300,
        "\u202e",
        "???",
        "a b",
        "${now:%Y}",
        "1,2",
        "int('a')",
    )
    text = random.choice(("", "", "+", "++", "~", "+++")) + random.choice(keys)
    return {WORD: (text + random.choice(("=", "=", "==", "", "@a=", ":")) + random.choice(values)).encode()}


KEYS = (
    "train.train_iters",
    "optimizer.lr",
    "defaults",
    "_self_",
    "engine",
    "run",
    "model",
    "run.home",
    "override /engine",
)
TARGETS = (
    Target("yaml", "YAML of users", _yaml, _parse, _yaml_fault, share=3),
    Target(
        "architecture",
        "model.architecture",
        _architecture,
        lambda folder, files: load_architecture(str(folder / "mine.yaml"), {}),
        _architecture_fault,
        (PATTERN, "like", "ME", *SIZES),
        share=2,
    ),
    Target("config", "configs of a stage", _config, _compose, _config_fault, KEYS, seconds=20, share=0.04),
    Target(
        "override",
        "settings on the command line",
        _overrides,
        _override,
        _override_fault,
        (*KEYS, "=", "+", "~", "["),
        seconds=20,
        share=0.04,
        in_files=False,
        mutate=in_hydra,
    ),
    Target(
        "expectations",
        "limits that runs are checked by",
        _expectations,
        lambda folder, files: read_expectations(folder / "mine.yaml"),
        _expectations_fault,
        ("metric", "line", "file", "last", "loss", "at_most"),
        share=0.3,
    ),
)
