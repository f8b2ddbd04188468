"""The Dockerfile, built for real by buildah from a folder that was fetched, on a base made of this machine's own files.

No registry is asked. A base of NVIDIA's and the compilation of kernels inside of it are not covered, nor is
apptainer.def, of which only the shell is read.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nemotron_cluster.airgap.fetch import fetch, plan
from nemotron_cluster.airgap.packages import Target, Wanted
from nemotron_shared.machine.environments import repository
from nemotron_shared.system.errors import UserError

CONTAINERS = Path(__file__).parents[1] / "src" / "nemotron_cluster" / "containers"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBRARIES = ["libgcc_s.so.1", "libstdc++.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
             "libutil.so.1"]  # fmt: skip
"""What wheels expect of every system."""
TOOLS = ["bash", "sh", "env", "ln", "sed", "mktemp", "dirname", "rm", "mkdir", "chown", "chmod", "test", "id", "cat",
         "ls"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command itself and what it needs, from the real index."""
    root, place = repository(), tmp_path_factory.mktemp("folder")
    assert root is not None
    try:
        fetch(plan(root, place, Target(PYTHON, os.uname().machine), Wanted(("nemotron-app",)), []), place)
    except UserError as error:
        if "again, which continues" not in str(error):
            raise
        pytest.skip(f"needs the index of packages: {error}")
    return place


def copy_program(program: Path, root: Path) -> None:
    """A program and the libraries that it is linked with, at the same places."""
    answer = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    for path in [str(program), *re.findall(r"(/\S+) \(0x", answer.stdout)]:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(path, target)  # what a link leads to


def make_base(root: Path) -> None:
    """Python, bash and a few tools of this machine: as small as a base can be."""
    for name in TOOLS:
        found = shutil.which(name)
        assert found, name
        copy_program(Path(found), root)
    home = Path(sys.base_prefix)
    library = home / "lib" / f"python{PYTHON}"
    names = ["test", "tests", "site-packages", "dist-packages", "idlelib", "__pycache__", "config-*"]
    left_out = shutil.ignore_patterns(*names)
    shutil.copytree(library, root / str(library).lstrip("/"), ignore=left_out, symlinks=True)
    copy_program(Path(os.path.realpath(sys.executable)), root)
    for extension in (library / "lib-dynload").glob("*.so"):
        copy_program(extension, root)
    cached = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    for name in LIBRARIES:
        copy_program(Path(re.findall(rf"{re.escape(name)} \(libc6.*\) => (\S+)", cached)[0]), root)
    for folder in ("tmp", "etc", "root", "usr/bin"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "usr" / "bin" / f"python{PYTHON}").symlink_to(os.path.realpath(sys.executable))
    for name in ("bin", "lib", "lib64"):
        if Path("/", name).is_symlink() and not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")


@pytest.mark.slow
def test_a_stage_trains_in_the_image_that_the_documented_command_builds(tmp_path: Path) -> None:
    """`ci/image.sh sft`, and in its image `torchrun stages/sft/train.py -c tiny` with fewer steps."""
    if shutil.which("buildah") is None or os.geteuid() != 0:
        pytest.skip("needs buildah, as root")
    settings = tmp_path / "storage.conf"
    settings.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/run"\n', encoding="utf-8"
    )
    isolated = {"CONTAINERS_STORAGE_CONF": str(settings), "BUILDAH_ISOLATION": "chroot", "BUILDER": "buildah"}

    def run(*words: str | Path) -> str:
        answer = subprocess.run(
            words, env=os.environ | isolated | {"BASE": "localhost/base"}, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, f"{words}: {answer.stdout[-3000:]}{answer.stderr[-3000:]}"
        return answer.stdout.strip()

    root = repository()
    assert root is not None
    try:
        base = tmp_path / "base"
        make_base(base)
        container = run("buildah", "from", "scratch")
        run("buildah", "copy", container, base, "/")
        run("buildah", "config", "--env", "PATH=/usr/bin:/bin", container)
        run("buildah", "commit", "--quiet", container, "localhost/base")
        run(root / "ci" / "image.sh", "sft")
        started = run("buildah", "from", "--pull=never", "localhost/nemotron-sft")
        # torchrun asks for the address of its host's name, and buildah's own random one has none
        inside = "id -u > user; nemotron --version > version; "
        inside += "torchrun stages/sft/train.py -c tiny train.train_iters=2 && nemotron artifacts list > made"
        run("buildah", "run", "--hostname", "localhost", started, "--", "bash", "-c", inside)
        # read from its files: buildah can lose what a short command prints
        image = Path(run("buildah", "mount", started))
        user, version, made = ((image / "home/nemotron" / name).read_text() for name in ("user", "version", "made"))
        assert user == "1000\n" and version.startswith("nemotron 0.") and "super3-sft-model" in made
        assert not list(image.glob("mnt/*")), "the wheels stay out of the image"
        cached = image / f"opt/nemotron/lib/python{PYTHON}/site-packages/nemotron_app/__pycache__"
        assert (cached / f"main.cpython-{PYTHON.replace('.', '')}.pyc").is_file()
    finally:
        for words in (["rm", "--all"], ["rmi", "--all", "--force"]):
            subprocess.run(["buildah", *words], env=os.environ | isolated, capture_output=True, check=False)


@pytest.mark.slow
def test_a_machine_with_nothing_of_ours_and_no_network(folder: Path, tmp_path: Path) -> None:
    isolated = ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*isolated, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a namespace without a network")
    bare = {"PATH": f"{Path(sys.base_prefix, 'bin')}:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment = tmp_path / "env"
    made = subprocess.run([*isolated, "bash", folder / "build.sh", environment], env=bare, check=False)
    assert made.returncode == 0
    asked = [*isolated, environment / "bin" / "nemotron", "airgap", "build", folder, "--target", environment]
    again = subprocess.run(asked, env=bare, capture_output=True, text=True, check=False)
    assert again.returncode == 0
    assert "nemotron_app: 0.1" in again.stdout
    wheel = min((folder / "wheels").glob("click-*.whl"))
    kept = wheel.read_bytes()
    wheel.write_bytes(kept[:-1])
    refused = subprocess.run(asked, env=bare, capture_output=True, text=True, check=False)
    wheel.write_bytes(kept)
    assert refused.returncode == 2
    assert f"{wheel.name} has {len(kept) - 1} bytes instead of {len(kept)}" in refused.stderr


def test_the_definitions_agree_and_their_shell_is_right() -> None:
    definition, dockerfile = (CONTAINERS / "apptainer.def").read_text(), (CONTAINERS / "Dockerfile").read_text()
    default = re.findall(r"^(?:ARG |    )(BASE|STAGE|ARCH)=(.*)$", dockerfile + definition, flags=re.MULTILINE)
    assert len(default) == 6 and len(set(default)) == 3
    sections = re.split(r"^%(\w+).*$", definition, flags=re.MULTILINE)
    parts = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert set(parts) == {"arguments", "help", "files", "post", "environment", "runscript"}
    for name in ("post", "environment", "runscript"):
        text = re.sub(r"\{\{ (\w+) \}\}", r"\1", parts[name])
        assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0, name
