"""What each runtime loads, how large it will be, and how it is made from a model of the store.

transformers, vllm, sglang    the folder: safetensors, config, tokenizer; for vllm also in FP8, by NVIDIA's ModelOpt
llama.cpp                     one GGUF file, by llama.cpp's own converter (`nemotron engine install llama_cpp`)
megatron                      the folder, and a Megatron checkpoint in it, by Megatron-Bridge (`nemotron engine install
                              megatron`)

Of an adapter, transformers takes PEFT's layout, and the servers one pair of matrices for each expert.
"""

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from nemotron_app.export import README
from nemotron_serving.gguf_convert import QUANTIZED
from nemotron_serving.programs import LLAMA_CPP as LLAMA
from nemotron_shared.artifacts import Artifact
from nemotron_shared.models.scales import FLOATS
from nemotron_shared.models.weights import ADAPTER
from nemotron_shared.system.atomic import read_json, write_text
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError

if TYPE_CHECKING:
    from nemotron_engines.modeling.stored import Stored

FOLDERS = ("transformers", "vllm", "sglang")
LLAMA_CPP = "llama.cpp"
MEGATRON = "megatron"
RUNTIMES = (*FOLDERS, LLAMA_CPP, MEGATRON)
NOT_WRITTEN = {
    "tensorrt-llm": "export with --for transformers: it reads that folder, which was not tried here",
}
"""Runtimes that no layout is written for, and what to do."""
FP8, INT8 = "FP8", "INT8"
"""What ModelOpt makes of a folder, and what it would make."""
NO_INT8 = ("ModelOpt writes it as W8A8_SQ_PER_CHANNEL or W8A16, which vLLM refuses, and NVIDIA has no recipe for this "
           "family")  # fmt: skip
DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Types of an export, and safetensors' names for them."""
ROUTER_BIAS = "e_score_correction_bias"
"""Always in its own type: transformers, vLLM and llama.cpp add it to scores in float32."""


@dataclass(frozen=True)
class Layout:
    """What an export holds.

    Attributes:
        runtimes: those that it is for.
        dtype: of the weights; None keeps what they have.
        adapter: only the adapter.
        quantize: a type of the GGUF file that is llama.cpp's own, or FP8 for the folder.
    """

    runtimes: tuple[str, ...]
    dtype: str | None
    adapter: bool
    quantize: str | None = None

    def require(self, artifact: Artifact) -> None:
        """Refuse what no runtime could load, before anything is written.

        Raises:
            UserError: with a remedy.
        """
        for name in self.runtimes:
            if name in NOT_WRITTEN:
                raise UserError(f"--for {name}: it needs files that we do not write", NOT_WRITTEN[name])
        for name in (LLAMA_CPP, MEGATRON):
            if self.adapter and name in self.runtimes:
                raise UserError(
                    f"--for {name}: an adapter alone is not converted", "leave --adapter out: merged weights"
                )
        if self.adapter and self.dtype:
            raise UserError("--dtype is for whole weights", "leave it out: an adapter keeps its type")
        if self.adapter and "transformers" in self.runtimes and len(self.runtimes) > 1:
            what = "--adapter: transformers (PEFT) and servers name the adapters of experts in different ways"
            raise UserError(what, "export twice, into two folders, each with its own --for")
        if self.quantize == INT8:
            raise UserError(f"--quantize INT8 is not offered: {NO_INT8}", "take FP8, or Q8_0 for llama.cpp")
        if self.fp8:
            self._require_fp8(artifact)
        elif self.quantize and not self.gguf:
            raise UserError(f"--quantize {self.quantize} is a type of GGUF files", "add --for llama.cpp")
        self._require_converters(artifact)

    def _require_converters(self, artifact: Artifact) -> None:
        if self.gguf:
            from nemotron_serving import gguf_file

            if self.quantize:
                LLAMA.require()
            gguf_file.require_converter()
            gguf_file.pre_tokenizer(artifact.path)  # raises where llama.cpp has none like it
        if self.megatron:
            from nemotron_serving import megatron

            megatron.require(artifact.path)

    def _require_fp8(self, artifact: Artifact) -> None:
        from nemotron_serving import fp8

        if self.adapter:
            raise UserError("--quantize FP8 is for whole weights", "leave --adapter out")
        if self.runtimes != ("vllm",):
            why = "transformers would drop its scales, llama.cpp has its own types, and SGLang was not tried"
            raise UserError(f"--quantize FP8 is for vllm alone: {why}", "say --for vllm, and no other")
        fp8.require(artifact.path)

    @property
    def fp8(self) -> bool:
        """Whether the folder is quantised."""
        return self.quantize == FP8

    @property
    def gguf(self) -> bool:
        """Whether a GGUF file belongs to it."""
        return LLAMA_CPP in self.runtimes

    @property
    def megatron(self) -> bool:
        """Whether a Megatron checkpoint belongs to it."""
        return MEGATRON in self.runtimes

    def copy(self) -> Callable[[Path, Path], object]:
        """Writer of one of the model's files, in another type if one was given."""
        from nemotron_engines.modeling.stored import rewrite

        def written(source: Path, target: Path) -> None:
            if self.dtype and source.suffix == ".safetensors":
                rewrite(source, target, self._type_of)
            else:
                shutil.copyfile(source, target)

        return written

    def finish(self, artifact: Artifact, made: Path, title: str, rows: Sequence[list[int]] = ()) -> None:
        """Bring a written folder into the form that its runtimes load.

        Args:
            rows: token ids that scales of activations are measured on.
        """
        if self.adapter:
            if "transformers" not in self.runtimes:
                from nemotron_engines.lora.layout import unroll

                pairs = unroll(artifact.path, artifact.path / ADAPTER, made)
                say(f"[{artifact.reference}] {pairs} pairs, one for each expert, for {', '.join(self.runtimes)}")
            return
        if self.dtype:
            _tell_type(made, self.dtype)
        if self.fp8:
            from nemotron_serving import fp8

            say(f"[{artifact.reference}] FP8 by ModelOpt, with {len(rows)} rows that the model was trained on")
            say(f"[{artifact.reference}] {fp8.quantise(artifact.path, made, rows)}")
        if self.megatron:
            from nemotron_serving import megatron

            megatron.write(made)
        if self.gguf:
            from nemotron_serving import gguf_file

            # from the model's own files, so that norms, which stay in float32 there, are not rounded on the way
            gguf_file.convert(artifact.path, made / self.gguf_name(artifact, title), self.gguf_type(artifact))
        if self.runtimes == (LLAMA_CPP,):
            for file in made.iterdir():
                if file.is_dir():
                    shutil.rmtree(file)
                elif file.suffix != ".gguf" and file.name != README:
                    file.unlink()

    def _type_of(self, tensor: "Stored") -> str:
        """The type that one of the model's tensors is written in, as safetensors calls it."""
        from nemotron_engines.modeling.stored import IN_FLOAT32

        if self.dtype is None or tensor.dtype not in FLOATS or ROUTER_BIAS in tensor.name:
            return tensor.dtype
        # what a folder in 16 bits keeps in float32 stays so
        more = tensor.dtype == "F32" and (IN_FLOAT32.search(tensor.name) or _most(tensor.file.parent) != "F32")
        return tensor.dtype if more else DTYPES[self.dtype]

    def gguf_name(self, artifact: Artifact, title: str) -> str:
        """As llama.cpp names such files: `my-model-BF16.gguf`."""
        return f"{title}-{self.gguf_type(artifact)}.gguf"

    def gguf_type(self, artifact: Artifact) -> str:
        """What most of the GGUF file's values are."""
        return self.quantize or DTYPES[self.dtype or dtype_of(artifact.path)]

    def sizes(self, artifact: Artifact, files: Mapping[str, Path], title: str) -> dict[str, int]:
        """Bytes of each file that would be written; those of weights exactly, but for their headers."""
        from nemotron_engines.modeling.stored import Stored, size_of, stored

        in_8_bits = None
        if self.fp8:
            from nemotron_serving import fp8

            in_8_bits = fp8.recipe_of(artifact.path)[1]

        def type_of(one: Stored) -> str:
            small = in_8_bits is not None and len(one.shape) > 1 and in_8_bits.search(one.name)
            return "F8_E4M3" if small else self._type_of(one)

        found = {
            name: sum(size_of(one, type_of(one)) for one in stored(path).values())
            if name.endswith(".safetensors")
            else path.stat().st_size
            for name, path in files.items()
        }
        weights = sum(size for name, size in found.items() if name.endswith(".safetensors"))
        if self.megatron:
            found[MEGATRON] = weights
        if self.gguf:
            if self.quantize:  # not exactly: norms and rows of an odd length keep more bits
                tensors = [
                    one for path in files.values() if path.suffix == ".safetensors" for one in stored(path).values()
                ]
                weights = round(sum(math.prod(one.shape) for one in tensors) * QUANTIZED[self.quantize])
            name = self.gguf_name(artifact, title)
            found = {name: weights} if self.runtimes == (LLAMA_CPP,) else found | {name: weights}
        return found


def dtype_of(folder: Path) -> str:
    """The type of most of a folder's values.

    Raises:
        UserError: they are quantised, which no export here writes.
    """
    most = _most(folder)
    if most not in DTYPES.values():
        what = f"{folder}: most of its weights are {most}"
        raise UserError(what, f"give one of --dtype {', '.join(DTYPES)}" if most in FLOATS else "give the model itself")
    return next(name for name, short in DTYPES.items() if short == most)


@cache
def _most(folder: Path) -> str:
    from nemotron_engines.modeling.stored import most_of

    return most_of(folder)


def _tell_type(folder: Path, dtype: str) -> None:
    """Let config.json and an index say what the weights now are."""
    from nemotron_engines.modeling.stored import renew_index

    config = read_json(folder / "config.json")
    config.pop("torch_dtype", None)  # its older name
    write_text(folder / "config.json", json.dumps(config | {"dtype": dtype}, indent=2, ensure_ascii=False) + "\n")
    renew_index(folder)
