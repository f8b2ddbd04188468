"""`nemotron plan`: memory, disk, time and GPU hours of a training, from its config alone.

nemotron plan tiny                              the trainings of that name, on this machine
nemotron plan pretrain/super3                   a recipe, on the GPUs that it is made for
nemotron plan pretrain/super3 128xGB200         on other GPUs
nemotron plan sft/nano3_lora 8xH200 train.micro_batch_size=4
nemotron plan mine.yaml H100 --stage sft        a file of your own
nemotron plan sft/super49b 64xH100 --price 2.50 its cost at 2.50 USD per GPU hour

GPUS is COUNTxNAME. A name alone means one GPU, a count alone means H100s. Nothing is measured or run, and no model is
looked up, locally or on the hub: a plan uses the recipe's own architecture, unless you name a model with
run.model=... Every number is computed, and the assumptions are listed below it.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from nemotron_app import completion
from nemotron_app.launch import dry_run_of
from nemotron_app.recipes import composed, recipes
from nemotron_app.request import Request
from nemotron_app.store_options import Look, store_options
from nemotron_shared.config.overrides import override, require_once, require_unsplit
from nemotron_shared.config.references import resolve_section
from nemotron_shared.engine.needs import FEW_STEPS, HOUR, NOT_ESTIMATED
from nemotron_shared.machine.machine import DEVICES, device_named
from nemotron_shared.stages import STAGES
from nemotron_shared.system.console import tell
from nemotron_shared.system.errors import UserError, did_you_mean

TRAININGS = tuple(name for name, stage in STAGES.items() if stage.model is not None)
GPUS = re.compile(r"(?:(\d+)\s*(?:[xX*]\s*|$))?(.*)")
BACKWARDS = re.compile(r"(.+?)\s*[xX*]\s*(\d+)")
MOST = 100_000
"""Upper limit of the GPU count; no cluster has as many."""
USUAL = "H100"
NOT_LOOKED_FOR = " (not looked for)"
ON_A_NODE = {"GB200": 4, "GB300": 4}
"""GPUs per node, if not eight."""


@click.command("plan", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("config", metavar="CONFIG", shell_complete=completion.configs)
@click.argument("words", nargs=-1, metavar="[GPUS] [KEY=VALUE ...]", shell_complete=completion.overrides)
@click.option("--stage", type=click.Choice(TRAININGS), help="stage of a file outside the stages' folders")
@click.option(
    "--price", type=click.FloatRange(min=0), metavar="USD", help="price of a GPU hour; shows the cost as well"
)
@store_options
def command(look: Look, config: str, words: tuple[str, ...], stage: str | None, price: float | None) -> int:
    """See the module docstring."""
    require_unsplit(words)
    overrides = [word for word in words if "=" in word]
    require_once(overrides)
    gpus = [word for word in words if "=" not in word]
    if len(gpus) > 1:
        raise UserError(f"two words for the GPUs: {' and '.join(gpus)}", "say them as one: 64xH100")
    if price is not None and not math.isfinite(price):
        raise UserError(f"--price {price}: not a price", "say the USD of one GPU hour: --price 2.50")
    device = parse_gpus(gpus[0]) if gpus else None
    plans = []
    if config.startswith(tuple(f"{name}/" for name in STAGES if name not in TRAININGS)):
        other = " or ".join(f"{name}/{config.partition('/')[2]}" for name in TRAININGS)
        raise UserError(f"{config}: an evaluation trains nothing that could be planned", f"name a training: {other}")
    for one, choice in recipes(config, stage, TRAININGS):
        shown = _ask(look, one, choice, overrides, device)
        if price is not None and shown["estimate"] is not None and shown["estimate"]["step_seconds"]:
            _add_cost(shown, price)
        plans.append({"stage": one, "config": choice, **shown})
        if not look.json:
            tell("\n".join(["", *_lines(one, choice, shown)] if len(plans) > 1 else _lines(one, choice, shown)))
    if look.json:
        look.tell(plans)
    return 0


def _add_cost(shown: dict[str, Any], price: float) -> None:
    """Add the cost of all steps, or of `FEW_STEPS` steps if their number is unknown."""
    estimate = shown["estimate"]
    steps = FEW_STEPS if estimate["steps_are_a_limit"] else estimate["steps"]
    cost = price * steps * sum(estimate["step_seconds"].values()) * estimate["devices"] / HOUR
    of = f" for {FEW_STEPS} steps" if estimate["steps_are_a_limit"] else ""
    unit = "core" if estimate["device"].startswith("CPU") else "GPU"
    estimate |= {"cost_usd": cost, "cost_steps": steps}
    shown["estimated"].append(f"cost: {cost:,.{0 if cost >= 10 else 2}f} USD{of}, at {price:,.2f} USD a {unit} hour")


def parse_gpus(text: str) -> tuple[int, str]:
    """Parse a GPU count and name: `64xH100`, `64` or `H100`.

    Raises:
        UserError: none of these forms, or more than `MOST` GPUs.
    """
    if re.match(r"[-+]?[\d.]+", text) and not text[0].isdigit():
        raise UserError(f"'{text}' is not a GPU count", f"use a number from 1 to {MOST:,}: 64xH100")
    found = GPUS.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise UserError(f"'{text}' names no GPUs", "give a count and a type: 64xH100")
    name, count = found[2].strip() or USUAL, found[1] or "1"
    device = None if name[0].isdigit() else device_named(name)  # "8 H100" is not one H100
    if device is None:
        raise UserError(f"'{text}': no GPU named '{name}' is known", _known(name))
    if len(count) > 9 or not 1 <= int(count) <= MOST:
        raise UserError(f"'{text}': {count} GPUs", f"say a number from 1 to {MOST:,}: 64xH100")
    return int(count), device.name


def _known(name: str) -> str:
    """The remedy for an unknown GPU: the closest name, and all known ones."""
    there = f"known, as COUNTxNAME: {', '.join(DEVICES)}"
    turned = BACKWARDS.fullmatch(name)
    if turned and device_named(turned[1]):
        return f"did you mean '{turned[2]}x{turned[1]}'? {there}"
    like = next((known for known in DEVICES if name.upper() in known), None)
    close = f"did you mean '{like}'?" if like else did_you_mean(name.upper(), DEVICES)
    return f"{close} {there}" if close else there


def _ask(
    look: Look, stage: str, choice: str, overrides: Sequence[str], device: tuple[int, str] | None
) -> dict[str, Any]:
    """The estimate from the stage's dry run, and its other output."""
    tree = composed(stage, choice, overrides).tree
    engine = tree.get("engine") or {}
    made_for = engine.get("world_size") or engine.get("num_nodes", 0) * engine.get("gpus_per_node", 0)
    machine = _machine(device or (made_for, USUAL), engine) if device or made_for else None
    where = override("run.home", str(look.store.home))
    request = Request(str(resolve_section(tree, "run")["family"]), (stage,), choice, (*overrides, where), True, True)
    shown = dry_run_of(stage, request, machine, config_alone=True)
    if shown["estimate"] is None and shown["problems"]:
        message, _, remedy = shown["problems"][0].partition("\n")
        raise UserError(message, remedy.strip() or None)
    if why := next((note for note in shown["notes"] if note.startswith(NOT_ESTIMATED)), None):
        raise UserError(why.removeprefix(NOT_ESTIMATED), "plan for a model whose tensors can be counted: run.model=...")
    if shown["estimate"] is not None:
        made = [f"{made_for} x {USUAL}: what the recipe is made for"] if made_for and not device else []
        shown["estimate"]["assumptions"][:0] = [*_not_read(shown), *made]
    return {name: shown[name] for name in ("estimate", "estimated", "problems")}


def _machine(device: tuple[int, str], engine: Mapping[str, Any]) -> dict[str, Any]:
    """Fully used nodes of these GPUs, in the format of `--machine`."""
    count, name = device
    each = min(count, ON_A_NODE.get(name, 8))
    is_driver = "num_nodes" in engine  # a single process, which starts the others itself
    if is_driver and count % each:
        less = count - count % each
        what = f"{count}x{name}: {engine.get('name')} takes whole nodes, which have {each} {name} each"
        raise UserError(what, f"say {less}x{name} or {less + each}x{name}")
    return {
        "nodes": -(-count // each),
        "processes": 1 if is_driver else count,
        "gpus": {"name": name, "count": each},
        "sees_files": False,
    }


def _not_read(shown: Mapping[str, Any]) -> Iterator[str]:
    """The recipe's base model, if it was not looked up."""
    model = (shown["inputs"].get("model") or "").removesuffix(NOT_LOOKED_FOR)
    if model and shown["inputs"]["model"] != model:
        yield f"run.model={model} was not read: say run.model=... to plan for a model that you have"


def _lines(stage: str, choice: str, shown: dict[str, Any]) -> Iterator[str]:
    yield f"{stage} -c {choice}"
    width = max((len(line.partition(": ")[0]) for line in shown["estimated"]), default=0)
    for line in shown["estimated"]:
        name, _, said = line.partition(": ")
        yield f"  {name:<{width}}  {said}"
    if shown["problems"]:
        yield "  what would stop it"
        yield from (f"    {line}" for problem in shown["problems"] for line in problem.splitlines())
    if shown["estimate"] is not None:
        yield "  assumed"
        yield from (f"    {said}" for said in shown["estimate"]["assumptions"])
