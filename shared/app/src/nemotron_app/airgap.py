"""`nemotron airgap`: an environment for machines without a network.

    nemotron airgap fetch FOLDER --package nemotron-sft --extra kernels --model hf://ORG/NAME
    nemotron airgap build FOLDER --target ENV
    nemotron super3 airgap scripts PROFILE

`fetch` runs on a machine with a network. `build` needs only the folder and runs without one, e.g. on a compute node.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from nemotron_shared.families import families
from nemotron_shared.machine.environments import repository
from nemotron_shared.system.console import tell, tell_json
from nemotron_shared.system.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from nemotron_cluster.profiles import Loaded

FOLDER = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))


@click.group("airgap", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
def command() -> None:
    """See the module docstring."""


@command.command("fetch")
@FOLDER
@click.option("--package", "packages", multiple=True, help="members of the workspace [nemotron-sft]")
@click.option("--extra", "extras", multiple=True, help="extras of them, such as kernels")
@click.option("--python", default="3.11", show_default=True, help="the Python of the other side")
@click.option("--platform", default="x86_64", show_default=True, help="its processor: x86_64, aarch64")
@click.option("--cuda", type=click.Choice(["13", "12"]), default="13", show_default=True, help="what its driver is for")
@click.option("--model", "models", multiple=True, metavar="hf://ORG/NAME|FOLDER", help="a model to bring along")
@click.option("--tokenizer", "tokenizers", multiple=True, metavar="hf://ORG/NAME|FOLDER", help="a tokenizer alone")
@click.option("--data", "data", multiple=True, metavar="PATH|URL", help="files: local, s3://, gs://, hf://datasets/...")
@click.option("--sources", is_flag=True, help="nothing but the sources of what nvcc compiles")
@click.option("--trust-code", is_flag=True, help="models may bring Python code of their own")
@click.option("--dry-run", "-d", is_flag=True, help="show what would be fetched, and how large it is")
@click.option("--json", "as_json", is_flag=True, help="the plan as JSON on standard output")
def fetch_(folder: Path, **asked: Any) -> int:
    """Download packages, models and data into FOLDER. Run it again to resume."""
    from nemotron_cluster.airgap.fetch import fetch, find_model, plan, show
    from nemotron_cluster.airgap.packages import Target, Wanted
    from nemotron_shared.system.console import say

    target = Target(asked["python"], asked["platform"])
    if (root := repository()) is None:
        what = "what to fetch stands in the repository's uv.lock, and this is an installed package without it"
        raise UserError(what, "clone the repository and run it there")
    packages = asked["packages"] or ("nemotron-sft",)
    wanted = Wanted(packages, asked["extras"], asked["cuda"], asked["sources"])
    trusted = asked["trust_code"]
    materials = [find_model(each, weights=True, trusted=trusted) for each in asked["models"]]
    materials += [find_model(each, weights=False, trusted=trusted) for each in asked["tokenizers"]]
    materials += [_data(each) for each in asked["data"]]
    folder = folder.expanduser().absolute()
    work = plan(root, folder, target, wanted, materials)
    show(work, folder)
    if not asked["dry_run"]:
        fetch(work, folder)
        say(f"complete. On the other side: nemotron airgap build {folder}")
    if asked["as_json"]:
        tell_json(work.to_json())
    return 0


@command.command("build")
@FOLDER
@click.option(
    "--target",
    default="automodel_env",
    show_default=True,
    metavar="VENV",
    help="the environment to make",
    type=click.Path(path_type=Path),
)
@click.option("--jobs", type=click.IntRange(min=1), help="compilers at once [as processors and memory allow]")
@click.option("--arch", "architectures", multiple=True, metavar="9.0", help="GPUs to compile for [those that are here]")
@click.option("--json", "as_json", is_flag=True, help="the report as JSON on standard output")
def build_(folder: Path, target: Path, jobs: int | None, architectures: tuple[str, ...], as_json: bool) -> int:
    """Build an environment from FOLDER without a network. Run it again to resume. Exit code 1: not all was built."""
    from dataclasses import asdict

    from nemotron_cluster.airgap.build import build

    _check_architectures(architectures)
    report = build(folder.expanduser().absolute(), target.expanduser().absolute(), architectures, jobs)
    if as_json:
        tell_json(asdict(report))
    else:
        tell("\n".join(report.lines()))
        tell(f"use it: source {target}/bin/activate")
    return 0 if report.is_whole else 1


@command.command("scripts", context_settings={"ignore_unknown_options": True})
@click.argument("profile")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--family", metavar="NAME", help="the model's, as in `nemotron NAME airgap scripts` [super3]")
@click.option("--output", default="scripts", show_default=True, type=click.Path(path_type=Path, file_okay=False))
@click.option("--folder", default="airgap", show_default=True, help="where `airgap fetch` puts everything")
@click.option("--environment", default="automodel_env", show_default=True, help="the environment to make")
@click.option("--python", default="3.11", show_default=True, help="of the compute nodes")
@click.option("--platform", default="x86_64", show_default=True, help="of the compute nodes")
@click.option("--cuda", type=click.Choice(["13", "12"]), help="what they load [what the profile loads, or 13]")
@click.option("--arch", "architectures", multiple=True, metavar="9.0", help="GPUs to compile for [those of the node]")
@click.option("--container", metavar="STAGE/CONFIG|IMAGE", help="the container to import [what the training names]")
def scripts_(profile: str, arguments: tuple[str, ...], family: str | None, output: Path, **asked: Any) -> int:
    """Write scripts for a site whose compute nodes have no network. ARGUMENTS are those of the training, such as
    `-c tiny engine=automodel`.
    """
    from nemotron_cluster.airgap.packages import Target, require_cuda
    from nemotron_cluster.airgap.scripts import Layout, render_scripts, slurm_profile, write_scripts
    from nemotron_cluster.profiles import load_profile

    target = Target(asked["python"], asked["platform"])
    loaded = load_profile(profile)
    cuda = _cuda(asked["cuda"], loaded)
    require_cuda(cuda, target)
    fetched = ("--package", "nemotron-sft", "--extra", "automodel", "--extra", "kernels", "--python", target.python,
               "--platform", target.platform, "--cuda", cuda)  # fmt: skip
    _check_architectures(asked["architectures"])
    arguments = _of_family(family, arguments or ("-c", "tiny", "engine=automodel"))
    container = _container(asked["container"], arguments, slurm_profile(loaded).container_image)
    layout = Layout(
        str(repository() or "."), asked["folder"], asked["environment"], fetched, asked["architectures"], arguments,
        container,
    )  # fmt: skip
    found = render_scripts(loaded, layout)
    write_scripts(found, output.expanduser().absolute())
    tell("\n".join(str(output / name) for name in found))
    return 0


def _of_family(family: str | None, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Add the family to the arguments of the training, as `nemotron FAMILY sft` does.

    Raises:
        UserError: unknown family.
    """
    if family is None:
        return arguments
    if family not in families():
        raise UserError(f"--family {family}: no such family", did_you_mean(family, [*families()]))
    return (*arguments, f"run.family={family}")


def _cuda(asked: str | None, loaded: "Loaded") -> Literal["12", "13"]:
    """The CUDA version to fetch packages for: the one that the profile loads on the nodes.

    Raises:
        UserError: it differs from the requested version, or has no packages.
    """
    from nemotron_cluster.airgap.packages import CUDA_12
    from nemotron_cluster.airgap.scripts import cuda_of, slurm_profile
    from nemotron_shared.system.console import say

    loads = cuda_of(slurm_profile(loaded))
    if loads is None:
        return "12" if asked == "12" else "13"
    major, version, key = loads
    where = f"{loaded.origins.get(key, loaded.file)}, {key}"
    if asked not in (None, major):
        what = f"--cuda {asked}: the profile loads CUDA {version} ({where})"
        raise UserError(what, f"load CUDA {asked} there, or leave --cuda out")
    if major not in ("12", "13"):
        what = f"{where}: CUDA {version} is loaded, and there is torch for CUDA 12 and 13 only"
        raise UserError(what, "load one of those in the profile")
    torch = CUDA_12.partition("==")[2]
    instead = f"; torch {torch}, made for CUDA 12.8, takes the place of uv.lock's" if major == "12" else ""
    say(f"packages for CUDA {major}, because the profile loads {version} ({where}){instead}")
    return "12" if major == "12" else "13"


def _container(asked: str | None, arguments: tuple[str, ...], of_profile: str | None) -> str | None:
    """The image to import into a file; None without an image, or if it already is a file.

    Raises:
        UserError: the requested recipe does not exist or names no container.
    """
    from nemotron_app.recipes import composed, recipe
    from nemotron_shared.config.references import setting
    from nemotron_shared.stages import STAGES
    from nemotron_shared.step.arguments import parse_arguments

    if asked and asked.partition("/")[0] in STAGES:
        stage, choice = recipe(asked)
        found = setting(composed(stage, choice, ()).tree, "engine.container")
        if found is None:
            raise UserError(f"--container {asked}: this recipe names no container", "name the image itself")
    elif asked:
        found = asked
    else:
        training = parse_arguments("stages.sft.train", "", arguments)
        found = setting(composed("sft", training.config, training.overrides).tree, "engine.container") or of_profile
    is_file = found is None or found.startswith(("/", ".", "$", "~")) or found.endswith((".sqsh", ".sif"))
    return None if is_file else found


def _check_architectures(asked: tuple[str, ...]) -> None:
    for each in asked:
        if not re.fullmatch(r"\d+\.\d[af]?", each):
            raise UserError(f"--arch {each}: no compute capability", "write it as in NVIDIA's tables: --arch 9.0")


def _data(text: str) -> Any:
    """The files to bring along for a data argument, from any source that the project can read."""
    from nemotron_cluster.airgap.fetch import PARTIAL, Material, Promise, find_files
    from nemotron_data.sources.input_file import file_system, is_remote, reported
    from nemotron_data.sources.listing import walk
    from nemotron_shared.models.references import artifact_name

    if not is_remote(text):
        return find_files(Path(text).expanduser(), "data")
    found = walk(text)
    base = text.rstrip("/") if len(found) > 1 and "*" not in text else text.rpartition("/")[0]
    names = {file.path.removeprefix(base).lstrip("/") if file.path.startswith(base) else Path(file.path).name: file
             for file in found}  # fmt: skip

    def bring(missing: list[str], into: Path) -> None:
        for name in missing:
            with reported(names[name].path):
                system, place = file_system(names[name].path)
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                partial = (into / name).with_name(Path(name).name + PARTIAL)
                system.get_file(place, str(partial))
            partial.replace(into / name)

    place = f"data/{artifact_name(text.partition('://')[2].strip('/').replace('/', '--'))}"
    return Material(place, text, {name: Promise(file.size) for name, file in names.items()}, bring)
