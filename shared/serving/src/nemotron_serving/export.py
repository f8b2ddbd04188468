"""`nemotron export`: write a model as a self-contained folder, for transformers, other programs and the hub.

    nemotron export sft ./my-model                 the whole weights, adapters merged
    nemotron export sft ./my-model --for transformers --for llama.cpp --dtype bfloat16
                                                   the folder, and a GGUF file in it
    nemotron export sft ./my-model --for llama.cpp --quantize Q8_0
                                                   a GGUF file of 8 bits a weight
    nemotron export sft ./my-model --for vllm --quantize FP8
                                                   experts in FP8, by NVIDIA's ModelOpt
    nemotron export sft ./my-model --for megatron  with a Megatron checkpoint in it, by Megatron-Bridge
    nemotron export sft ./my-adapter --adapter     the LoRA adapter alone, in PEFT's layout
    nemotron export sft ./my-adapter --adapter --for vllm
                                                   with one pair of matrices for each expert
    nemotron export sft ./my-model --licence apache-2.0 --push my-org/my-model
                                                   and afterwards to the hub, private unless --public

README.md is the model card: data, scores with confidence intervals, history, licence. Weights that are not finite, or
do not match config.json, are refused. Before the folder is seen, it is compared with the model, as `nemotron verify`
does; passport.html shows the result.
"""

from pathlib import Path

import click

from nemotron_app import completion
from nemotron_app.export import card, exported_files, require_room, write_folder
from nemotron_app.store_options import Look, store_options
from nemotron_serving.gguf_convert import QUANTIZED
from nemotron_serving.layouts import DTYPES, FOLDERS, FP8, INT8, NOT_WRITTEN, RUNTIMES, Layout
from nemotron_serving.passport.parts import PAGE, Passport
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.models.finding import find_model
from nemotron_shared.models.folder import config_of, known_types, needs_code
from nemotron_shared.models.references import BARE
from nemotron_shared.system.console import say
from nemotron_shared.system.disk import size
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.hub_errors import HubPlace, hub_errors
from nemotron_shared.system.stop import end_on_sigterm


@click.command("export", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("model", metavar="NAME[:V] | FOLDER | hf://ORG/NAME", shell_complete=completion.models)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--for",
    "runtimes",
    multiple=True,
    type=click.Choice([*RUNTIMES, *NOT_WRITTEN]),
    help="what will load it; may be repeated",
)
@click.option("--dtype", type=click.Choice([*DTYPES]), help="of the weights (default: as they are)")
@click.option(
    "--quantize",
    type=click.Choice([*QUANTIZED, FP8, INT8]),
    help=f"for llama.cpp: {', '.join(QUANTIZED)}, by its own tools; for vllm: {FP8}, by NVIDIA's ModelOpt",
)
@click.option("--adapter/--merged", "adapter", default=False, help="the adapter alone, or the whole weights (default)")
@click.option("--verify/--no-verify", default=True, help="compare it with the model afterwards: see nemotron verify")
@click.option("-d", "--dry-run", is_flag=True, help="only say what would be written, and how large it is")
@click.option("--licence", "--license", metavar="ID", help="the licence, where the model does not bring one along")
@click.option("--push", metavar="ORG/NAME", help="send the folder to this repository of the hub")
@click.option("--public", is_flag=True, help="with --push: a new repository is for everybody to see")
@click.option("--force", is_flag=True, help="write into a folder that holds something")
@click.option("--trust-code", is_flag=True, help="take the Python files along that the model cannot do without")
@store_options
def command(
    look: Look, model: str, folder: Path, runtimes: tuple[str, ...], dtype: str | None, quantize: str | None,
    adapter: bool, verify: bool, dry_run: bool, licence: str | None, push: str | None, public: bool, force: bool,
    trust_code: bool,
) -> int:  # fmt: skip
    """Run the command; see the module docstring."""
    end_on_sigterm()
    if push is not None and not (BARE.fullmatch(push) and "@" not in push):
        raise UserError(f"--push {push}: not a repository of the hub", "write --push ORGANISATION/NAME")
    if public and push is None:
        raise UserError("--public is for a repository of the hub", "add --push ORGANISATION/NAME, or leave it out")
    artifact = find_model(look.store, model, family=look.family, trusted=trust_code)
    require_room(folder, force, (look.store.root, artifact.path))
    layout = Layout(tuple(dict.fromkeys(runtimes)) or FOLDERS[:1], dtype, adapter, quantize)
    layout.require(artifact)
    require_whole_export(artifact, layout)
    if layout.gguf:
        from nemotron_serving import gguf_file

        if verify:
            gguf_file.require_computed(artifact.path)
        if dry_run:
            gguf_file.rehearse(artifact.path)
    title = push.partition("/")[2] if push else folder.resolve().name
    readme = card(look.store, artifact, title, adapter=adapter, licence=licence, servers_only=layout.fp8)
    if dry_run:
        sizes = layout.sizes(artifact, exported_files(artifact, adapter=adapter), title)
        told = {"folder": str(folder), "model": artifact.reference, "files": sizes, "bytes": sum(sizes.values())}
        lines = [f"{folder / name}: {size(count)}" for name, count in sizes.items()]
        look.tell(told, *lines, f"in all {size(told['bytes'])}, for {', '.join(layout.runtimes)}; nothing was written")
        return 0
    rows = _calibration(look.store, artifact) if layout.fp8 else []
    seen: list[Passport] = []

    def finish(made: Path) -> None:
        layout.finish(artifact, made, title, rows)
        if verify:
            from nemotron_serving.passport.compare import verified

            passport = verified(look.store, made, artifact)
            passport.export = title
            if first := next(iter(passport.findings), None):
                what = f"{folder}: the export is not its model: {first.key} {first.message} ({passport.line})"
                raise UserError(what, "export with --no-verify to look at it: nemotron verify")
            passport.write(made)
            seen.append(passport)

    names = write_folder(artifact, folder, readme, adapter=adapter, force=force, copy=layout.copy(), finish=finish)
    told = {"folder": str(folder), "model": artifact.reference, "files": names, "pushed": None}
    told["verified"] = seen[0].summary() if seen else None
    line = f"{folder}: {artifact.reference}, {len(names)} files; read its README.md before you publish it"
    if seen:
        line = f"{line}\n{seen[0].line}: {folder / PAGE}"
    if push:
        told["pushed"] = send(folder, names, push, private=not public)
        line = f"{line}\npushed to {told['pushed']}"
    look.tell(told, line)
    return 0


def _calibration(store: Store, artifact: Artifact) -> list[list[int]]:
    """Token ids of the first rows that the model was trained on.

    Raises:
        UserError: this machine has none.
    """
    from nemotron_serving.fp8 import ROWS
    from nemotron_serving.passport.rows import rows_of

    rows = rows_of(store, artifact, ROWS)
    if not rows.trained:
        what = f"{artifact.reference}: FP8 needs rows that the model was trained on, and none are in {store.root}"
        raise UserError(what, "export a model that was trained in this store")
    return [row.ids.tolist() for row in rows.trained]


def require_whole_export(artifact: Artifact, layout: Layout) -> None:
    """Refuse weights that cannot be loaded, before anything is written.

    Raises:
        UserError: not finite, also as float32, or not those of config.json; or quantised, and for a runtime that would
            drop their scales.
    """
    files = exported_files(artifact, adapter=layout.adapter)
    weights = [files[name] for name in files if name.endswith(".safetensors")]
    from nemotron_engines.modeling.build import require_tensors
    from nemotron_engines.modeling.loaded import is_quantized, require_finite, require_kept_scales

    config = config_of(artifact.path)
    known = config.get("model_type") in known_types() and not needs_code(config)
    quantised = is_quantized(config) and not layout.adapter
    can_be_compared = known and not quantised
    if can_be_compared and not layout.adapter:
        require_tensors(artifact.path)
    for file in weights:
        require_finite(file)
    if quantised and (layout.dtype or layout.gguf or layout.fp8 or layout.megatron):
        what = (
            f"{artifact.reference}: its weights are quantised, and are numbers of another type only with their scales"
        )
        raise UserError(
            what, "leave --dtype, --quantize, llama.cpp and megatron out, or give the model as it was before"
        )
    if quantised and "transformers" in layout.runtimes:
        require_kept_scales(artifact.path)
    if not can_be_compared and not layout.adapter:
        why = "its weights are quantised" if known else "transformers does not know its type without custom code"
        say(f"[{artifact.reference}] its config.json was not compared with the weights: {why}")


def send(folder: Path, names: list[str], repository: str, *, private: bool) -> str:
    """Upload these files to the hub in one commit; returns its address.

    Raises:
        UserError: no token, or the hub refuses them.
    """
    address = f"hf://{repository}"
    with hub_errors(address, HubPlace(repository, None, "model")):
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.utils import disable_progress_bars

        if get_token() is None:
            raise UserError(f"--push {repository}: no token for the hub", "set HF_TOKEN, or run: hf auth login")
        disable_progress_bars()
        api = HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        say(f"[{address}] sending {len(names)} files")
        done = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=names,
            commit_message=f"Export of {folder.name}",
        )
    return str(done.commit_url)
