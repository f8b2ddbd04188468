"""`airgap fetch` against an index of our own: what is chosen, resumed, kept, refused."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from airgap_lab import HOST, Index, serving, source, wheel, workspace

from nemotron_cluster.airgap import fetch as fetching
from nemotron_cluster.airgap.fetch import Plan, download, fetch, find_files, plan, read_manifest, require_intact
from nemotron_cluster.airgap.packages import Package, Target, Wanted
from nemotron_shared.system.errors import UserError

HERE = Target("3.11", "x86_64")
WANTED = Wanted(("tiny-member",))
ALPHA = "alpha-1.0-py3-none-any.whl"
MAMBA = "mamba_ssm-1.0.tar.gz"
BIG = "big-1.0-py3-none-any.whl"
OTHERS = [f"beta-1.0-cp{minor}-cp{minor}-manylinux_2_{glibc}_{platform}.whl"
          for minor in (311, 312) for glibc in (17, 28, 39) for platform in ("x86_64", "aarch64")]  # fmt: skip
FETCH = """
import sys
from pathlib import Path
from nemotron_cluster.airgap.fetch import fetch, plan
from nemotron_cluster.airgap.packages import Target, Wanted
root, folder = map(Path, sys.argv[1:])
fetch(plan(root, folder, Target("3.11", "x86_64"), Wanted(("tiny-member",)), []), folder)
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with a pure wheel, one for each platform, a large one and a source."""
    files = {ALPHA: wheel("alpha", "1.0"), BIG: wheel("big", "1.0", padding=4 << 20)}
    files |= {name: wheel("beta", "1.0", code=f"NAME = {name!r}") for name in OTHERS}
    files["gamma-1.0.tar.gz"] = source("gamma", "1.0")
    files[MAMBA] = source("mamba-ssm", "1.0", compiled=True)
    with serving(Index(files)) as served:
        served.unsized.add(ALPHA)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://{served.host}/simple")
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
        yield served


@pytest.fixture
def root(index: Index, tmp_path: Path) -> Path:
    return workspace(tmp_path / "root", index, ["alpha", "beta", "big", "gamma", "mamba-ssm"], os.environ)


def planned(root: Path, folder: Path, target: Target = HERE) -> Plan:
    return plan(root, folder, target, WANTED, [])


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(("python", "platform"), [("3.11", "x86_64"), ("3.12", "aarch64")])
def test_what_is_fetched_fits_the_target_and_the_manifest_names_all(
    root: Path, tmp_path: Path, python: str, platform: str
) -> None:
    folder = tmp_path / "folder"
    work = planned(root, folder, Target(python, platform))
    assert not folder.exists(), "a plan writes nothing"
    manifest = fetch(work, folder)
    minor = python.replace(".", "")
    kinds = {each.name: (each.kind, each.file) for each in manifest.packages}
    assert kinds == {
        "alpha": ("wheel", "wheels/alpha-1.0-py3-none-any.whl"),
        "beta": ("wheel", f"wheels/beta-1.0-cp{minor}-cp{minor}-manylinux_2_28_{platform}.whl"),
        "big": ("wheel", f"wheels/{BIG}"),
        "mamba-ssm": ("compiled", f"wheels/source/mamba-ssm/{MAMBA}"),
        "gamma": ("sdist", "wheels/gamma-1.0-py3-none-any.whl"),
        "tiny-member": ("member", "wheels/tiny_member-0.3-py3-none-any.whl"),
    }
    assert read_manifest(folder) == manifest
    assert len(manifest.files) == 8  # the packages, the lock and build.sh
    for name, entry in manifest.files.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry.sha256
    require_intact(folder, manifest)


def test_the_size_is_known_before_and_room_is_asked_for(
    root: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = planned(root, tmp_path / "folder")
    beta = "beta-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    chosen = (ALPHA, beta, BIG, "gamma-1.0.tar.gz", MAMBA)
    assert work.bytes == sum(len(index.files[name]) for name in chosen)
    assert ("HEAD", None) in index.of(ALPHA), "the lock has no size of it"
    monkeypatch.setattr("nemotron_shared.machine.machine.shutil.disk_usage", lambda _: type("", (), {"free": 1000}))
    assert "1.0 kB are free" in refusal(lambda: fetch(work, tmp_path / "folder"))


def test_killed_it_goes_on_where_it_was(root: Path, index: Index, tmp_path: Path) -> None:
    folder, first = tmp_path / "folder", 3 << 20
    partial = folder / "wheels" / f"{BIG}.partial"
    index.held = (BIG, first)
    process = subprocess.Popen([sys.executable, "-c", FETCH, root, folder])
    others = [folder / "wheels" / ALPHA, folder / ".sdists" / "gamma-1.0.tar.gz"]
    deadline = time.monotonic() + 300
    while not (partial.is_file() and partial.stat().st_size >= first and all(other.is_file() for other in others)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert "or the fetch has not ended" in refusal(lambda: read_manifest(folder))
    index.go.set()
    index.asked.clear()
    kept = partial.stat().st_size
    work = planned(root, folder)
    assert work.here >= kept
    manifest = fetch(work, folder)
    assert index.of(BIG) == [("GET", f"bytes={kept}-")]
    assert not {other.name for other in others} & index.served
    require_intact(folder, manifest)
    assert (folder / "wheels" / BIG).read_bytes() == index.files[BIG]
    index.asked.clear()
    fetch(planned(root, folder), folder)
    assert index.served == set(), "a third run downloads nothing"


def test_a_beginning_that_is_not_of_this_file_is_fetched_again(root: Path, index: Index, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "wheels").mkdir(parents=True)
    (folder / "wheels" / f"{BIG}.partial").write_bytes(b"something else")
    (folder / "wheels" / "alpha-1.0-py3-none-any.whl.partial").write_bytes(b"x" * 100_000)  # longer than the wheel
    require_intact(folder, fetch(planned(root, folder), folder))


def test_a_damaged_file_is_named_and_the_next_fetch_repairs_it(root: Path, index: Index, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    manifest = fetch(planned(root, folder), folder)
    path = folder / "wheels" / BIG
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (folder / "wheels" / "gamma-1.0-py3-none-any.whl").unlink()
    said = refusal(lambda: require_intact(folder, manifest))
    assert f"wheels/{BIG} has another content; wheels/gamma-1.0-py3-none-any.whl is missing" in said
    index.asked.clear()
    require_intact(folder, fetch(planned(root, folder), folder))
    assert index.of(BIG) == [("GET", None)]


def test_content_that_the_lock_does_not_promise_is_refused(root: Path, index: Index, tmp_path: Path) -> None:
    index.spoiled.add(BIG)
    folder = tmp_path / "folder"
    assert "another SHA-256 than the lock says" in refusal(lambda: fetch(planned(root, folder), folder))
    assert not (folder / "wheels" / BIG).exists()
    assert not (folder / "manifest.json").exists()


def test_everything_goes_through_a_proxy(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    direct, index.host = f"http://{index.host}", HOST
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://{HOST}/simple")
    monkeypatch.setenv("http_proxy", direct)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    root = workspace(tmp_path / "root", index, ["alpha"], os.environ)
    fetch(planned(root, tmp_path / "folder"), tmp_path / "folder")
    assert ("GET", f"http://{HOST}/files/alpha-1.0-py3-none-any.whl", None) in index.asked
    monkeypatch.setenv("https_proxy", direct)
    monkeypatch.setattr(fetching, "TRIES", 1)
    secret = {tmp_path / "x.whl": Package("x", "1", "wheel", "x.whl", f"https://{HOST}/x.whl", "0" * 64, 1)}
    assert "HTTPS_PROXY" in refusal(lambda: download(secret))
    assert ("CONNECT", f"{HOST}:443", None) in index.asked


def test_what_does_not_exist_is_refused(root: Path, index: Index, tmp_path: Path) -> None:
    assert "there are: 3.11, 3.12, 3.13" in refusal(lambda: Target("3.10", "x86_64"))
    assert "there are: x86_64, aarch64" in refusal(lambda: Target("3.11", "riscv64"))
    missing = refusal(lambda: planned(root, tmp_path, Target("3.13", "x86_64")))
    assert "for Python 3.13 on x86_64: No wheel found matching the provided tags for package 'beta'" in missing
    assert "does not have a member nothing" in refusal(lambda: plan(root, tmp_path, HERE, Wanted(("nothing",)), []))
    (root / "member" / "pyproject.toml").write_text(
        (root / "member" / "pyproject.toml").read_text().replace('"gamma"', '"gamma", "delta"')
    )
    assert "uv ended with exit code" in refusal(lambda: planned(root, tmp_path))


def test_own_files_are_copied_once_and_compared(root: Path, tmp_path: Path) -> None:
    own, folder = tmp_path / "corpus", tmp_path / "folder"
    (own / "more").mkdir(parents=True)
    (own / "a.jsonl").write_text("{}\n")
    (own / "more" / "b.jsonl").write_text("{}\n")
    single = tmp_path / "c.jsonl"
    single.write_text("1\n")
    materials = [find_files(own, "data"), find_files(single, "data")]
    manifest = fetch(plan(root, folder, HERE, WANTED, materials), folder)
    assert manifest.materials == {"data/corpus": str(own), "data/c.jsonl": str(single)}
    assert {"data/corpus/a.jsonl", "data/corpus/more/b.jsonl", "data/c.jsonl"} <= set(manifest.files)
    (folder / "data" / "c.jsonl").write_text("2\n")  # as long as the right one
    assert plan(root, folder, HERE, WANTED, materials).missing_materials == [[], ["c.jsonl"]]
    assert "two things would become data/c.jsonl" in refusal(
        lambda: plan(root, folder, HERE, WANTED, [*materials, find_files(single, "data")])
    )
    assert "no such file" in refusal(lambda: find_files(tmp_path / "none", "data"))


def test_the_plan_for_programs(root: Path, tmp_path: Path) -> None:
    told = json.loads(json.dumps(planned(root, tmp_path / "folder").to_json()))
    assert told["to_download"] == told["bytes"] > 4 << 20
    assert [each["kind"] for each in told["packages"]] == ["wheel", "wheel", "wheel", "sdist", "compiled", "member"]


def test_the_sources_alone(root: Path, tmp_path: Path) -> None:
    only = Wanted(("tiny-member",), sources_only=True)
    manifest = fetch(plan(root, tmp_path / "folder", HERE, only, []), tmp_path / "folder")
    assert [each.name for each in manifest.packages] == ["mamba-ssm"]
    assert not [*(tmp_path / "folder" / "wheels").glob("*.whl")]
