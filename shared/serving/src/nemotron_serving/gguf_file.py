"""GGUF files: made of a model folder by llama.cpp's converter, and read back to be compared with it.

convert(Path("exported"), Path("exported/my-model-BF16.gguf"), "BF16")
read = Gguf(Path("my-model-BF16.gguf"))      needs the package `gguf`: the extra nemotron-serving[gguf]
read.settings["general.architecture"], read.tensors["blk.0.ssm_in.weight"]
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from nemotron_engines.modeling.stored import stored_in
from nemotron_serving.gguf_convert import NOTHING, QUANTIZED
from nemotron_serving.gguf_limits import limits_of
from nemotron_serving.programs import LLAMA_CPP, Program, last_words
from nemotron_shared.machine.environments import environment_of
from nemotron_shared.models.folder import config_of
from nemotron_shared.system.atomic import read_json, sync
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError

CONVERTER = Program("llama.cpp's converter", "llama_cpp", (str(Path(__file__).with_name("gguf_convert.py")),))
"""It is started with our own Python, which has what it needs, and the packages of its environment."""
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {"gpt-2": [BYTES], "smollm": [DIGITS, BYTES]}
"""llama.cpp's names, and the steps of tokenizer.json that split a text in the same way."""
ANOTHER = "leave --for llama.cpp out, or give another model"


def require_converter() -> Path:
    """The folder of packages with llama.cpp's converter.

    Raises:
        UserError: it is not installed.
    """
    return next(CONVERTER.require().parent.parent.glob("lib/python3.*/site-packages"))


def pre_tokenizer(folder: Path) -> str | None:
    """llama.cpp's name for how the folder's tokenizer splits a text; None where only its converter could know.

    Raises:
        UserError: the folder has no tokenizer.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"{folder}: holds no tokenizer.json, which a GGUF file needs", "put the tokenizer there")
    told = read_json(file, most=None).get("pre_tokenizer") or {}
    steps = told.get("pretokenizers", [told])
    plain = [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps]
    return next((name for name, wanted in PRE_TOKENIZERS.items() if plain == wanted), None)


def convert(folder: Path, file: Path, dtype: str) -> None:
    """Write the model folder as one GGUF file.

    A block that predicts further tokens (`mtp.*`) is left out.

    Args:
        dtype: F32, BF16, F16, or one of `QUANTIZED`.

    Raises:
        UserError: with the last line of what llama.cpp's converter or tools said.
    """
    if dtype in QUANTIZED:
        with TemporaryDirectory(dir=file.parent) as between:
            exact = Path(between) / f"{file.stem}.gguf"
            convert(folder, exact, "F32")
            LLAMA_CPP.run("quantize", exact, file, dtype, failed="llama.cpp's tools failed: ", remedy=ANOTHER)
        sync(file)
        return
    _run_converter(folder, str(file), dtype)
    sync(file)
    if any(name.startswith("mtp.") for name in stored_in(folder)):
        say(f"{file.name}: the block that predicts further tokens (mtp.*) is left out")


def rehearse(folder: Path) -> None:
    """Let the converter do all but read values and write them.

    Raises:
        UserError: it refuses the model.
    """
    _run_converter(folder, NOTHING, "F32")


def _run_converter(folder: Path, file: str, dtype: str) -> None:
    paths = [str(require_converter()), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, *CONVERTER.start, folder, file, dtype, pre_tokenizer(folder) or ""]
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        why = last_words(done, CONVERTER.name)
        raise UserError(f"{folder}: {CONVERTER.name} of {version()} cannot convert it: {why}", ANOTHER)


def version() -> str:
    """Package and version that llama.cpp's converter is part of."""
    environment = environment_of(CONVERTER.environment)
    found = environment.versions() if environment else {}
    return ", ".join(f"{name} {number}" for name, number in found.items())


def require_computed(folder: Path) -> None:
    """Refuse a model that llama.cpp cannot load or computes otherwise, before a file is made of it.

    Raises:
        UserError: it is beyond one of llama.cpp's limits.
    """
    from nemotron_engines.modeling.build import read_config

    try:
        config = read_config(folder).to_dict()
    except UserError:  # a type of model that transformers does not know
        config = config_of(folder)
    if limit := next(limits_of(config), None):
        what = f"{folder}: llama.cpp of {version()} {limit}"
        raise UserError(what, f"{ANOTHER}, or --no-verify to look at what it makes of this one")


@dataclass(frozen=True)
class Gguf:
    """A GGUF file, mapped."""

    file: Path

    @cached_property
    def _reader(self) -> Any:
        if find_spec("gguf") is None:
            raise UserError(
                f"{self.file}: to read it, the package gguf is needed",
                "it is an extra: uv pip install 'nemotron-serving[gguf]'",
            )
        import gguf

        try:
            return gguf.GGUFReader(str(self.file))
        except (ValueError, KeyError, IndexError, OSError) as error:
            raise UserError(
                f"{self.file}: cannot be read: cut off, or no GGUF file", "convert the model again"
            ) from error

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Its keys and values; the keys below its architecture without that: `block_count`."""
        found = {name: field.contents() for name, field in self._reader.fields.items()}
        lacks = [name for name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")
                 if not isinstance(found.get(name), list)]  # fmt: skip
        if lacks:
            raise UserError(f"{self.file}: has no list {lacks[0]}, so it is not a language model", "convert it again")
        architecture = f"{found.get('general.architecture')}."
        return {name.removeprefix(architecture): value for name, value in found.items()}

    @cached_property
    def tensors(self) -> dict[str, Any]:
        """Its tensors by name, not yet dequantised."""
        return {one.name: one for one in self._reader.tensors}

    @property
    def kind(self) -> str:
        """The type that it is named after: F32, BF16, Q8_0, Q4_K_M."""
        import gguf

        told = self.settings.get("general.file_type")
        return gguf.LlamaFileType(told).name.partition("_")[2] if told in [*gguf.LlamaFileType] else ""

    def values(self, name: str) -> torch.Tensor:
        """One tensor in float32."""
        from gguf.quants import dequantize

        one = self.tensors[name]
        shape = [int(size) for size in reversed(one.shape)]
        return torch.tensor(dequantize(one.data, one.tensor_type)).reshape(shape)

    def dtype(self, name: str) -> str:
        """Its type: F32, BF16, Q8_0."""
        return self.tensors[name].tensor_type.name
