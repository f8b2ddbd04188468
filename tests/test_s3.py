"""Rows from a store of S3: a server of our own, asked over HTTP with signed requests, as any other is."""

import gzip
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from support import nemotron

from nemotron_shared.artifacts import Store

pytestmark = pytest.mark.slow
ALLOWED = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}}
SECRET = "averysecretkeythatnobodyshouldsee"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files: one that makes several shards, one that is compressed."""
    folder = tmp_path_factory.mktemp("here") / "corpus"
    folder.mkdir()
    rows = [json.dumps({"text": f"Document {n} tells of {n * 7919 % 1000} goats. " * (1 + n % 9)}) for n in range(9000)]
    (folder / "a.jsonl").write_text("\n".join(rows[:8000]) + "\n")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(rows[8000:]).encode()))
    return folder


@pytest.fixture(scope="module")
def s3(corpus: Path) -> Iterator[dict[str, str]]:
    """A server with the files in its bucket `texts`, and the environment of a user who may read them."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"}
    anybody: dict[str, Any] = {**address, "aws_access_key_id": "first", "aws_secret_access_key": "first"}
    client = boto3.client("s3", **anybody)
    client.create_bucket(Bucket="texts")
    for file in corpus.iterdir():
        client.upload_file(str(file), "texts", f"corpus/{file.name}")
    users = boto3.client("iam", **anybody)
    users.create_user(UserName="reader")
    users.put_user_policy(UserName="reader", PolicyName="s3", PolicyDocument=json.dumps(ALLOWED))
    key = users.create_access_key(UserName="reader")["AccessKey"]
    # from now on the server looks at signatures
    switch = Request(f"{address['endpoint_url']}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
    with urlopen(switch) as answer:
        assert answer.status == 200
    yield {
        "AWS_ENDPOINT_URL": address["endpoint_url"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
    }
    server.stop()


def prepare(home: Path, source: str, environment: dict[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    """Prepare in processes of their own, which find nothing but the environment of the user."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith("AWS_") and "proxy" not in key.lower()
    }
    words = nemotron("super3", "data", "prep", "pretrain", "-c", "tiny", f"data_prep.source={source}", *more)
    return subprocess.run(
        words,
        cwd=home,
        env={**kept, "NEMOTRON_HOME": str(home / "store"), "AWS_EC2_METADATA_DISABLED": "true", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def tokens(home: Path) -> dict[str, str]:
    """The digests of the token shards that were prepared."""
    made = Store(home / "store").resolve("super3-pretrain-data")
    return {name: entry.sha256 for name, entry in made.manifest.files.items() if name.endswith((".bin", ".idx"))}


@pytest.mark.parametrize(("remote", "local"), [("corpus/a.jsonl", "a.jsonl"), ("corpus/*.jsonl*", "*")])
def test_two_readers_of_s3_give_the_bytes_of_the_disk(
    s3: dict[str, str], corpus: Path, tmp_path: Path, remote: str, local: str
) -> None:
    made = []
    for name, source in (("s3", f"s3://texts/{remote}"), ("disk", f"{corpus}/{local}")):
        (tmp_path / name).mkdir()
        done = prepare(tmp_path / name, source, s3, "--workers", "2", "data_prep.shard_mb=1")
        assert done.returncode == 0, done.stderr
        made.append(tokens(tmp_path / name))
    assert made[0] == made[1]
    assert sum(name.startswith("train/") for name in made[0]) >= 4, "the readers had a shard each"
    (first, *_) = Store(tmp_path / "s3" / "store").resolve("super3-pretrain-data").manifest.sources
    assert first.uri == "s3://texts/corpus/a.jsonl"


WRONG = {
    "a missing key": ("s3://texts/corpus/c.jsonl", {}, "s3://texts/corpus/c.jsonl: no such file"),
    "a missing bucket": ("s3://nowhere/c.jsonl", {}, "s3://nowhere/c.jsonl: no such file"),
    "an unknown key": ("s3://texts/corpus/a.jsonl", {"AWS_ACCESS_KEY_ID": "AKIAUNKNOWN"}, "access is refused"),
    "a wrong secret": ("s3://texts/corpus/a.jsonl", {"AWS_SECRET_ACCESS_KEY": SECRET}, "access is refused"),
    "a glob with a wrong secret": ("s3://texts/*/*", {"AWS_SECRET_ACCESS_KEY": SECRET}, "access is refused"),
    "nobody there": ("s3://texts/corpus/a.jsonl", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "cannot be read"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_s3_refuses_is_one_clear_error(s3: dict[str, str], tmp_path: Path, case: str) -> None:
    source, changed, said = WRONG[case]
    done = prepare(tmp_path, source, s3 | changed)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert (
        "Traceback" not in done.stderr and SECRET not in done.stderr and s3["AWS_SECRET_ACCESS_KEY"] not in done.stderr
    )
