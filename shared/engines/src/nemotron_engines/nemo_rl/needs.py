"""What NeMo-RL needs of a machine, for the checks before a start: its checkout, its GPUs, and paths."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemotron_engines.checks import in_billions, size_of
from nemotron_engines.nemo_rl.checkpoints import not_finished
from nemotron_engines.nemo_rl.compose import build
from nemotron_engines.nemo_rl.driver import ask
from nemotron_engines.nemo_rl.installation import Installation, find_installation, how_to_get
from nemotron_engines.nemo_rl.settings import NeMoRLEngine
from nemotron_engines.nemo_rl.table import load_table
from nemotron_engines.nemo_rl.training import code_in
from nemotron_engines.nemo_rl.translate import Places
from nemotron_engines.nemo_rl.versions import VERSIONS
from nemotron_engines.overrides import leaves
from nemotron_shared.config.training import TrainingConfig
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.engine import Inputs
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.models.folder import OPTION
from nemotron_shared.runtime.needs import Needs, Problem

PLACEHOLDER = "/path/to/"
PACKAGE = "nemo-rl"
RAY_CLUSTER = Path("/tmp/ray/ray_current_cluster")


def needs(
    config: TrainingConfig[NeMoRLEngine], inputs: Inputs, machine: Machine, algorithm: str, places: Places
) -> Needs:
    """One driver, the version of the recipe, and as many GPUs as its layout has."""
    return Needs(device="cpu", others=tuple(_lacking(config, inputs, machine, algorithm, places)))


def _lacking(
    config: TrainingConfig[NeMoRLEngine], inputs: Inputs, machine: Machine, algorithm: str, places: Places
) -> Iterator[Problem]:
    engine = config.engine
    if machine.processes > 1:
        what = f"engine nemo_rl is one driver, and here are {machine.processes} processes: each would start a training"
        yield Problem(
            what, "start it once, without torchrun (run.nproc_per_node=1); Ray starts the workers on all nodes"
        )
    if engine.load_path is not None and machine.sees_files:
        yield from not_finished(engine.load_path)
    installation, known = None, VERSIONS[engine.version]
    if machine.is_here:
        try:
            installation = find_installation(engine)
        except UserError as error:
            yield Problem(error.message, error.remedy)
    elif machine.knows_packages and (found := machine.version_of(PACKAGE)) != known.package:
        what = f"NeMo-RL {found or 'is not there'}, and this recipe is written for {known.package}"
        yield Problem(what, how_to_get(engine.version))
    values = build(config, algorithm, places, load_table(engine.version).bases[engine.base].values)
    left = [key for key, value in leaves(values) if PLACEHOLDER in str(value)]
    if left:
        what = f"this recipe needs a path for: {', '.join(left)}"
        yield Problem(what, f"give it: ++engine.overrides.{left[0]}=PATH")
    model = inputs.get("model")
    if model is not None and not model.trusted and (code := code_in(model.path)):
        what = f"{model.path} holds Python files that NeMo-RL would run: {', '.join(code)}"
        yield Problem(what, f"read them, then add {OPTION} to the command")
    if not engine.stop_before_training:
        yield from _gpus(values, machine, installation, size_of(config, inputs).total)


def _gpus(
    values: dict[str, Any], machine: Machine, installation: Installation | None, parameters: int
) -> Iterator[Problem]:
    """As many as the layout has, and room for the weights in 16 bits on those that hold them."""
    nodes, each = values["cluster"]["num_nodes"], values["cluster"]["gpus_per_node"]
    judges = ((values.get("env") or {}).get("nemo_gym") or {}).get("num_gpu_nodes", 0)
    wanted, found, where = (nodes + judges) * each, len(machine.gpus) * machine.nodes, "this machine"
    if not machine.is_here:
        where = "the machine that is described"
    elif installation is not None and (os.environ.get("RAY_ADDRESS") or RAY_CLUSTER.is_file()):
        # the driver would join this cluster, which only NeMo-RL's own environment can ask
        with tempfile.TemporaryDirectory() as folder:
            answer = ask(installation, Path(folder) / "gpus.log", "--gpus")
        found, where = answer["gpus"], answer["where"]
    if found < wanted:
        layout = f"{nodes} nodes x {each}" + (f", and {judges} nodes for judge models" if judges else "")
        what = (
            f"NeMo-RL needs {wanted} GPUs here ({layout}: engine.num_nodes, engine.gpus_per_node); {where} has {found}"
        )
        yield Problem(
            what,
            f"ask for them: --run PROFILE run.env.nodes={nodes + judges} run.env.gpus_per_node={each}, or run it on a "
            "Ray cluster that has them; engine.stop_before_training=true does everything that needs no GPU",
            of_layout=True,
        )
    elif machine.gpus and 2 * parameters > nodes * each * min(gpu.memory for gpu in machine.gpus):
        what = f"the weights of {in_billions(parameters)} do not fit into {nodes * each} GPUs ({machine.gpus[0].name})"
        yield Problem(what, "use more GPUs: engine.num_nodes, engine.gpus_per_node")
