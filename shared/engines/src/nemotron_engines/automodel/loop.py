"""One training run with Automodel, from a stage's task to its outcome."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nemotron_engines.automodel.export import export
from nemotron_engines.automodel.needs import apply_overrides
from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_engines.automodel.translate import Kind, Places, translate
from nemotron_engines.modeling.build import require_fit, set_threads
from nemotron_engines.stand_ins import automodel as cpu_shim
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.engine import checkpoints
from nemotron_shared.engine.checkpoints import Layout, Mark, Validation, report_best
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.library_output import library_output
from nemotron_shared.system import disk, distributed
from nemotron_shared.system.atomic import read_json, write_text
from nemotron_shared.system.console import from_here
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import Stopped
from nemotron_shared.tracking.metrics import RESULT_METRICS, last_values

# Checks before the first step and after the last, which Automodel does not make.


LARGEST_SANE_WEIGHT = 1e4  # weights read from uninitialised memory were seen between 1e12 and NaN


def require_sane_weights(model: nn.Module) -> None:
    """Refuse uninitialised weights.

    Automodel 0.7.0 builds its NemotronH on the meta device and then initialises only part of it, unless a checkpoint
    provides the rest. Training would continue with a NaN loss.

    Raises:
        UserError: a parameter is not finite, or larger than any trained weight.
    """
    for name, parameter in model.named_parameters():
        values = local(parameter.detach())
        largest = float(values.abs().max()) if values.numel() else 0.0
        if not math.isfinite(largest) or largest > LARGEST_SANE_WEIGHT:
            raise UserError(
                f"before the first step, parameter {name} holds {largest:g}: it was never initialised or loaded",
                "set run.model to a folder with complete weights",
            )


def refuse_passed_by_adapters(model: nn.Module) -> None:
    """Refuse an adapter on Mamba's `out_proj`, whose weight Automodel uses without calling the module.

    Raises:
        UserError: there is one.
    """
    for name, module in model.named_modules():
        if name.endswith(".out_proj") and hasattr(module, "lora_A"):
            raise UserError(
                f"engine.peft adapts {name}, but Automodel's fused Mamba call would bypass the adapter",
                "leave out_proj out of engine.peft.target_modules, or set engine.peft.match_all_linear=true",
            )


def refuse_unmergeable(model: nn.Module) -> None:
    """Refuse adapters that could be trained but not merged, such as those of routed experts.

    Raises:
        UserError: adapters train something other than the two matrices of a linear layer.
    """
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    matrices = [name for name in trained if name.endswith((".lora_A.weight", ".lora_B.weight"))]
    other = sorted(set(trained) - set(matrices))
    if other and any("lora_" in name for name in trained):
        raise UserError(
            f"engine.peft would train {other[0]}, which cannot be merged into the model afterwards",
            "choose linear layers in engine.peft.target_modules, or set engine.peft.match_all_linear=true",
        )


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Number of trained parameters and of all, over all shards."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, trained in sizes if trained), sum(size for size, _ in sizes)


def parameters_here(model: nn.Module) -> int:
    """Number of parameters that this process keeps: its shards, where they are sharded."""
    return sum(local(parameter.detach()).numel() for parameter in model.parameters())


def idle_adapters(model: nn.Module) -> list[str]:
    """Adapters that no gradient reached on this process: lora_B starts at zero and is still zero."""
    return [
        name.removesuffix(".lora_B.weight").removeprefix("module.")
        for name, parameter in model.named_parameters()
        if name.endswith(".lora_B.weight") and not bool(local(parameter.detach()).any())
    ]


def idle_on_all(mine: list[str], processes: int) -> list[str]:
    """Of the adapters idle here, those idle on every process."""
    if processes == 1:
        return mine
    found: list[Any] = [None] * processes
    torch.distributed.all_gather_object(found, mine)
    return [name for name in mine if all(name in other for other in found)]


def local(tensor: Any) -> Tensor:
    """This process's part of a tensor that may be sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def train_with_automodel(
    task: Task[SupervisedConfig[AutomodelEngine]],
    kind: Kind,
    train: Path,
    valid: Path | None,
    tokens_at: Callable[[int], int] | None,
) -> Outcome:
    """Train, export, and report what was trained.

    Args:
        kind, train, valid: see `Places`.
        tokens_at: tokens trained on after a number of steps.

    Raises:
        Stopped: a signal asked to stop; a checkpoint has been written.
        UserError: the environment, the config or the weights are unusable.
    """
    config, run = task.config, task.run
    line = cpu_shim.install()
    if line:
        run.say(line)
    set_threads(config.run.threads)
    places = distributed.on_rank_zero(lambda: _places(task, kind, train, valid))
    if places.restore_from:
        run.goes_on_from(steps_done(Path(places.restore_from)))
    recipe_config = translate(config, places, distributed.world_size(), on_gpu=torch.cuda.is_available())
    recipe_config = apply_overrides(recipe_config, config.engine, task.origins)
    if kind == "chat":
        run.say(f"chat template: {template_file(places.tokenizer)}")
    # Automodel prints its whole config and logs each step
    log = run.directory / f"automodel-{distributed.rank()}.log"
    with library_output(log), disk.full_disk_explained(run.directory):
        from nemotron_engines.automodel.recipe import StageRecipe

        recipe = StageRecipe(recipe_config, config, run, tokens_at)
        recipe.setup()
        trained, total = count_parameters(recipe.net)
        run.say(f"trained: {trained:,} of {total:,} parameters ({trained / max(1, total):.2%})")
        each = "" if distributed.world_size() == 1 else f": {parameters_here(recipe.net):,} of {total:,} on the first"
        run.say(f"{distributed.spread(config.engine.strategy)}{each}")
        with run.watched():
            recipe.run_train_validation_loop()
        done, asked = recipe.step_scheduler.step, config.train.train_iters
        if done < asked and distributed.any_rank(run.stop_requested):
            message = f"[{run.name}] stopped after step {done} of {asked}"
            raise Stopped(message, "run the same command again to continue")
        run.require_all_steps(done, asked)
    idle = idle_on_all(idle_adapters(recipe.net), distributed.world_size())
    if idle:
        run.say(f"{len(idle)} adapters never received a gradient: {', '.join(idle)}")

    def publish() -> Path:
        last, base = checkpoints.latest(places.checkpoints, LAYOUT), task.inputs["model"]
        assert last is not None, "the last step always writes a checkpoint"
        start, name = (base.path, str(base.path)) if base else (places.model.with_name("random"), None)
        output = run.fresh_output()
        export(last, start, name, places.tokenizer, output)
        return output

    output = distributed.on_rank_zero(publish)
    metadata: dict[str, Any] = {"step": done, "parameters": total, "trained_parameters": trained}
    metadata |= distributed.on_rank_zero(lambda: report_best(run, lambda best: _keep_best(task, places, best)))
    return Outcome(output, metadata | {"idle_adapters": idle}, last_values(run.metrics, RESULT_METRICS))


def template_file(tokenizer: Path) -> Path:
    """The file with a tokenizer's chat template: a separate file, or the tokenizer's config."""
    own = tokenizer / "chat_template.jinja"
    return own if own.is_file() else tokenizer / "tokenizer_config.json"


def _places(task: Task[SupervisedConfig[AutomodelEngine]], kind: Kind, train: Path, valid: Path | None) -> Places:
    run, base, data = task.run, task.inputs["model"], task.inputs["data"]
    if base is not None:
        require_fit(base)
    # raw chats use the tokenizer of the trained model
    tokenizer = data.path / "tokenizer" if data else task.input("model").path
    model = stage_base_model(task.config, base.path if base else None, tokenizer, run.checkpoints / "base")
    kept = run.checkpoints / "automodel"
    latest = resume_point(kept, run.say)
    return Places(model, tokenizer, kept, train, valid, kind, latest.name if latest else None, run.directory)


def _keep_best(task: Task[SupervisedConfig[AutomodelEngine]], places: Places, best: Validation) -> str:
    """Keep the checkpoint in Automodel's format: it exports a readable model only at the last step."""
    held = checkpoints.best(places.checkpoints, LAYOUT) if task.config.checkpoint.keep_best else None
    if held is None or held[1] != best:
        return ""
    folder = task.run.directory / "best"
    shutil.rmtree(folder, ignore_errors=True)
    steps = steps_done(held[0])
    held[0].rename(folder)
    return f"Automodel's checkpoint of step {steps} stays in {from_here(folder)}"


# Our models have 0, for no lower limit. Automodel takes its logarithm, for weights that are then overwritten.
PLACEHOLDER_TIME_STEP = 0.001


def stage_base_model(
    config: SupervisedConfig[AutomodelEngine], source: Path | None, tokenizer: Path, into: Path
) -> Path:
    """Make `into` a folder that Automodel can read, and return it.

    Args:
        source: a Hugging Face folder of the NemotronH architecture, or None for random weights.
    """
    into.mkdir(parents=True, exist_ok=True)
    if source is None:
        from nemotron_engines.modeling.build import save_random_model

        source = into.with_name("random")
        if not (source / "config.json").exists():  # else a resumed run, whose checkpoint builds on these weights
            save_random_model(config.model, tokenizer, config.run.seed, source)
    fields = read_json(source / "config.json")
    for file in source.iterdir():
        link = into / file.name
        if file.is_file() and file.name != "config.json" and not link.exists():
            link.symlink_to(file.resolve())
    write_text(into / "config.json", json.dumps(readable_config(fields), indent=2))
    return into


def readable_config(fields: dict[str, Any]) -> dict[str, Any]:
    """config.json with a positive `time_step_min`."""
    return fields | {"time_step_min": fields.get("time_step_min") or PLACEHOLDER_TIME_STEP}


NAME = re.compile(r"epoch_(\d+)_step_(\d+)")


def steps_done(path: Path) -> int:
    """Number of optimizer steps of a checkpoint; -1 for any other folder."""
    match = NAME.fullmatch(path.name)
    return int(match[2]) + 1 if match else -1


def missing_state(checkpoint: Path, mark: Mark) -> str | None:
    """A missing part of a checkpoint: weights and optimizer each have a folder, whose files depend on the layout."""
    absent = [part for part in ("model", "optim") if not any(name.startswith(f"{part}/") for name in mark.files)]
    return f"{', '.join(absent)} missing" if absent else None


LAYOUT = Layout(steps_done, missing_state)


def resume_point(directory: Path, say: Callable[[str], None]) -> Path | None:
    """The newest complete checkpoint; moves damaged ones aside, and deletes unfinished ones and links to either."""
    point = checkpoints.resume_point(directory, LAYOUT, say)
    _forget_dangling_links(directory)
    return point


def prune(directory: Path, *, keep: int, keep_best: bool) -> None:
    """Delete all but the newest checkpoints and the best one, and Automodel's dangling links."""
    checkpoints.prune(directory, LAYOUT, keep=keep, keep_best=keep_best)
    _forget_dangling_links(directory)


def _forget_dangling_links(directory: Path) -> None:
    """Remove `LATEST` and `LOWEST_VAL` if they dangle."""
    for path in directory.glob("*"):
        if path.is_symlink() and not path.exists():
            path.unlink()
