"""`eval --run` and `--batch` on a real Slurm: the real launcher, on the login node, submits there by ssh.

Server and harness are stand-ins in an image that is a folder; everything between them is what a site would run.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from evaluator_support import program
from slurm_jobs import Desk
from slurm_support import Cluster, compiled_plugin, need_slurm

pytestmark = pytest.mark.evaluator

PROFILE = """
account = "demo"
mounts = ["/usr:/usr", "{stubs}:/stubs"]
"""
SERVER = """
import http.server
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 1235), Ready).serve_forever()
"""
# Leaves what a task leaves, unless it is told to fail.
HARNESS = """#!/bin/sh
[ ! -e /stubs/fails ] || exit 1
cp /stubs/results.yml /results/results.yml
"""
RESULTS = """results: {tasks: {hellaswag: {metrics: {acc_norm: {scores: {acc_norm:
  {value: 0.7, stats: {stderr: 0.15}}}}}}}}
"""
SSH = "Host *\n  IdentityFile /etc/ssh/user\n"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    need_slurm()
    plugin = compiled_plugin(tmp_path)
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as short,  # PMIx puts a socket far below it
        Cluster(Path(short) / "c", "--account", "--sshd", "--spank", str(plugin)) as cluster,
    ):
        (cluster.folder / "ssh" / "ssh_config").write_text(SSH)
        stubs, image, model = (cluster.shared / name for name in ("stubs", "image", "model"))
        program(stubs / "nemo-evaluator", HARNESS)
        (stubs / "server.py").write_text(SERVER)
        (stubs / "results.yml").write_text(RESULTS)
        image.mkdir()
        for name in ("bin", "lib", "lib64"):
            (image / name).symlink_to(f"usr/{name}")
        model.mkdir()
        desk = Desk(cluster, "desk", PROFILE.format(stubs=stubs))
        file = desk.folder / "env.toml"
        path = '[test-slurm.env_vars]\nPATH = "/stubs:/usr/bin:/bin:/usr/sbin"\n'
        file.write_text(file.read_text().replace("[test-slurm.env_vars]\n", path))
        with tempfile.TemporaryDirectory(dir="/tmp") as home:  # short: the launcher puts a socket of ssh below it
            desk.environment |= {"HOME": home, "HOSTNAME": "head", "HF_TOKEN": "none"}
            yield desk


def words(desk: Desk) -> list[str]:
    image, model = desk.cluster.shared / "image", desk.cluster.shared / "model"
    launcher = Path(os.environ["NEMOTRON_EVALUATOR"]) / "nemo-evaluator-launcher"
    return ["super3", "eval", "-t", "hellaswag", "run.model=null", f"engine.launcher={launcher}",
            f"engine.container={image}", f"engine.tasks=[{{name: hellaswag, params: {{}}, container: {image}}}]",
            "engine.deployment.command='python3 /stubs/server.py'", f"engine.deployment.checkpoint_path={model}",
            f"engine.params.tokenizer={model}", "engine.poll_interval=1"]  # fmt: skip


def test_the_launcher_submits_from_here_with_what_the_profile_says(desk: Desk) -> None:
    shown = desk.run(*words(desk), "--run", "test-slurm", "--dry-run")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "launcher runs on this machine and submits its own jobs to test-slurm; it is not told: " in shown.stderr
    for line in ("hostname: head", "username: root", "account: demo", "partition: batch", "walltime: 00:30:00"):
        assert f"\n  {line}\n" in shown.stdout, line

    fails = desk.cluster.shared / "stubs" / "fails"
    fails.touch()
    sent = desk.run(*words(desk), "--batch", "test-slurm")
    assert sent.returncode == 0, sent.stdout + sent.stderr
    followed = desk.run("jobs", "logs", "last", "--follow")
    assert followed.returncode == 2, followed.stdout + followed.stderr
    assert "some jobs failed" in followed.stdout
    fails.unlink()

    waited = desk.run(*words(desk), "--run", "test-slurm")
    assert waited.returncode == 0, waited.stdout + waited.stderr
    made = desk.folder / "store" / "artifacts" / "super3-eval-results" / "v1" / "results.json"
    (score,) = json.loads(made.read_text())["scores"]
    assert (score["task"], score["value"]) == ("hellaswag", 0.7)
    listed = json.loads(desk.run("jobs", "--json").stdout)
    assert [one["state"]["state"] for one in listed] == ["failed", "done"]
    jobs = desk.cluster.checked("head", "sacct", "-nPX", "-o", "account,partition,jobname,timelimitraw")
    assert "demo|batch|demo-nemo-evaluator-launcher.hellaswag.0|30" in jobs.splitlines()


def test_a_login_node_that_takes_no_key_is_named_with_the_remedy(desk: Desk) -> None:
    (desk.cluster.folder / "ssh" / "ssh_config").unlink()
    refused = desk.run(*words(desk), "--run", "test-slurm")
    said = refused.stdout + refused.stderr
    assert refused.returncode == 2, said
    assert "ssh root@head: root@head: Permission denied" in said and "authorized_keys" in said
