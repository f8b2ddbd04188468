"""Words of a command line: names of artifacts and models, GPUs, parts of a split, time limits."""

import re
from pathlib import Path

from nemotron_app.plan import parse_gpus
from nemotron_data.sources.reading import Slice, parse_split
from nemotron_prove.input.second import fault_of, require
from nemotron_prove.input.target import Files, Target, word_of, words
from nemotron_shared.artifacts.names import Reference, check_alias, parse_reference
from nemotron_shared.runtime.devices import DEVICES, device_named
from nemotron_shared.runtime.models.references import HubModel, MegatronModel, parse_outside

NAME = r"[a-z0-9][a-z0-9._-]*"
WRITTEN = re.compile(rf"(?:art://)?(?:{NAME}(?:/{NAME})*|[A-Za-z]+Artifact(?:-[a-z]+)?)(?::(.*))?", re.DOTALL)
"""docs/artifacts.md, Names: lower-case words, slashes for dashes, older class names; and a version."""
MOST_GPUS = 10**6


def _reference(folder: Path, files: Files) -> Reference:
    found = parse_reference(word_of(files))
    if isinstance(found.version, str) and found.version != "latest":
        check_alias(found.version)
    return found


def _reference_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, Reference)
        written = WRITTEN.fullmatch(word_of(files))
        require(written, "not a name and a version")
        assert written is not None
        require(re.fullmatch(NAME, made.name) and len(made.name) <= 100, "a name that no folder of the store has")
        said = written[1]
        number = re.fullmatch(r"v?([1-9][0-9]*)", said or "")
        meant = int(number[1]) if number else said or "latest"
        require(said != "" and made.version == meant, "another version than is written")

    return fault_of(read)


def _outside(folder: Path, files: Files) -> HubModel | MegatronModel | None:
    return parse_outside(word_of(files))


def _outside_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        if isinstance(made, HubModel):
            parts = made.repository.split("/")
            require(len(parts) == 2, "not organisation/name")
            require(all(re.fullmatch(r"[A-Za-z0-9_.-]+", part) for part in parts), "no name of the hub")
            require(not any(part.strip(".") == "" or ".." in part for part in parts), "a name that leads elsewhere")
            require(".." not in made.revision and made.revision.isprintable(), "a revision that git refuses")
            require(re.fullmatch(NAME, made.name()) and len(made.name()) <= 100, "a name that the store cannot hold")
        if isinstance(made, MegatronModel):
            require("\0" not in str(made.path), "a path with a zero byte")

    return fault_of(read)


def _gpus(folder: Path, files: Files) -> tuple[int, str]:
    count, name = parse_gpus(word_of(files))
    device_named(name)
    return count, name


def _gpus_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, tuple)
        count, name = made
        text = word_of(files)
        require(1 <= count <= MOST_GPUS, "a number of GPUs that no cluster has")
        require(name in DEVICES, "no GPU that is known")
        digits = re.match(r"\s*([0-9]+)", text)
        require(count == (int(digits[1]) if digits else 1), "another number than is written")

    return fault_of(read)


def _slice_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, tuple)
        text, (name, part) = word_of(files), made
        require(name is None or not set("[]") & set(name), "a bracket in the split's name")
        if isinstance(part, Slice):
            require(re.fullmatch(r"[^\[\]]+\[(-?[0-9]+%?)?:(-?[0-9]+%?)?\]", text), "no part of a split")
            first, behind = part.bounds(1000)
            require(first >= 0 and behind <= 1000, "rows that are not there")
            require(not part.percent or all(abs(one or 0) <= 100 for one in (part.low, part.high)), "over 100 percent")

    return fault_of(read)


TARGETS = (
    Target(
        "reference", "names of artifacts", lambda: words(
            "super3-sft-model:v2", "sft:best", "art://sft-data:latest", "super3/sft/model:v2", "ModelArtifact-sft:3",
        ), _reference, _reference_fault, (":", "/", "v", "latest", "sft", "art://", "SFTDataArtifact-sft"),
        share=30, in_files=False,
    ),
    Target(
        "address", "addresses of models", lambda: words(
            "hf://org/name", "hf://models/org/name@v2", "megatron:./iter_0002000", "super3-sft-model",
        ), _outside, _outside_fault, ("hf://", "@", "/", "megatron:", "..", "models/", "~"), share=30, in_files=False,
    ),
    Target(
        "gpus", "GPUs to plan for", lambda: words("64xH100", "H200", "8 x RTX 4090", "128xGB200", "16"),
        _gpus, _gpus_fault, ("x", "H100", "0", "99999999999", *DEVICES), share=30, in_files=False,
    ),
    Target(
        "slice", "parts of a split", lambda: words("train[1024:]", "train[:10%]", "train[-1024:]", "test", "a[5%:9%]"),
        lambda folder, files: parse_split("hf://org/name", word_of(files)), _slice_fault,
        ("[", "]", ":", "%", "-", "1024"), share=30, in_files=False,
    ),
)  # fmt: skip
