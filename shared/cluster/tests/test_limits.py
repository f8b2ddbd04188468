"""Times, memory and accelerators as Slurm, Kubernetes and SkyPilot read them."""

from typing import Any

import pytest

from nemotron_cluster.doctor import slurm as scheduler
from nemotron_cluster.limits import accelerator_count, quantity, require_accelerators, require_memory, seconds_of
from nemotron_cluster.profiles import Kubeflow, SkyPilot, Slurm


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("30", 1800), ("30:20", 1820), ("4:00:00", 14400), ("1-0", 86400), ("1-02:30", 95400),
        ("2-00:00:01", 172801), ("0", None), ("0:00", None), ("00:00:00", None), ("0-0", None), ("UNLIMITED", None),
        ("Infinite", None), ("-1", None),
    ],
)  # fmt: skip
def test_a_time_is_read_as_slurm_reads_it(time: str, seconds: int | None) -> None:
    assert seconds_of(time) == seconds
    assert Slurm(executor="slurm", time=time, build_time=time).time == time


@pytest.mark.parametrize("time", ["", "4h", "1-", "1:2:3:4", "4.5", "none", "-2", " 30", "\u0663"])
def test_what_slurm_would_refuse_is_no_time(time: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time limit: write MINUTES, .*; 0 is no limit"):
        Slurm(executor="slurm", time=time)


@pytest.mark.parametrize("memory", ["0", "64000", "64G", "512M", "1T", "64g", "64GB", "64Gi"])
def test_memory_that_slurm_takes_is_left_as_it_is(memory: str) -> None:
    assert Slurm(executor="slurm", mem=memory).mem == memory


@pytest.mark.parametrize("memory", ["1.5G", "-1", "max", "64 GB", "G", "64X", "\u0663G"])
def test_memory_that_slurm_would_refuse_is_refused(memory: str) -> None:
    with pytest.raises(ValueError, match="is not a memory size for Slurm: write a whole number with K, M, G or T"):
        Slurm(executor="slurm", mem=memory)


def test_a_job_without_a_limit_is_longer_than_every_partition_that_has_one() -> None:
    def said(limit: str, time: str) -> list[str]:
        row = ["batch", "up", limit, "1", "gpu:8", "idle"]
        profile = Slurm(executor="slurm", time=time)
        return [check.finding.message for check in scheduler._fits(profile, "batch", [row], nodes=1, gpus=True)]

    assert said("1-00:00:00", "0") == [
        "1 of 1 nodes can be used",
        "jobs end after 1-00:00:00, and the profile asks for 0",
    ]
    assert len(said("1-00:00:00", "UNLIMITED")) == len(said("1-00:00:00", "25:00:00")) == 2
    assert len(said("infinite", "0")) == len(said("1-00:00:00", "24:00:00")) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64Gi", 2**36), ("64G", 64e9), ("64M", 64e6), ("1.5Gi", 1.5 * 2**30), ("1e9", 1e9), ("1E9", 1e9),
        ("2E", 2e18), ("5.Gi", 5 * 2**30), ("500m", 0.5), ("64k", 64e3), ("+5Ki", 5120),
    ],
)  # fmt: skip
def test_a_quantity_is_read_as_kubernetes_reads_it(text: str, value: float) -> None:
    assert quantity(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["64GB", "64gi", "64 Gi", "64GiB", "5e", "1_000", "", "Gi", "64K", "1e3Gi", "-1Gi", "\u0663Gi"]
)
def test_what_kubernetes_would_refuse_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        quantity(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("64GB", 'not a Kubernetes quantity: write "64Gi" (powers of 1024) or "64G" (of 1000)'),
        ("64 GiB", 'write "64Gi"'), ("64gi", 'write "64Gi"'), ("512mb", 'write "512Mi"'), ("64KB", 'or "64k"'),
        ("64", "'64' would be less than 1 MiB: write \"64Gi\""), ("64m", 'less than 1 MiB: write "64Mi"'),
        ("much", 'write "64Gi" or "64G"'), ("0", 'write "64Gi" or "64G"'),
    ],
)  # fmt: skip
def test_memory_that_kubernetes_would_not_take_names_what_is_meant(text: str, meant: str) -> None:
    with pytest.raises(ValueError) as error:
        require_memory(text)
    assert meant in str(error.value)


@pytest.mark.parametrize(
    ("keys", "meant"),
    [
        ({"memory_requests": "64GB"}, '"64Gi"'),
        ({"memory_requests": 64}, '"64Gi"'),
        ({"cpu_requests": "8 cores"}, '"8"'),
    ],
)
def test_a_profile_of_kubeflow_refuses_them(keys: dict[str, Any], meant: str) -> None:
    with pytest.raises(ValueError, match=meant):
        Kubeflow(executor="kubeflow", **keys)
    assert Kubeflow(executor="kubeflow", memory_requests="64Gi", cpu_requests=8).cpu_requests == "8"


@pytest.mark.parametrize(
    ("text", "count"),
    [("H100:8", 8), ("H100", 1), ("h100:8.0", 8), ("A100-80GB:4", 4), ("tpu-v5litepod-8", 1), ("L4:0.5", 1),
     ("Radeon Pro V520:1", 1), ("RTX4090:2", 2), ("rtx4090", 1), ("80GB+", 1), ("nvidia:80GB:8", 8)],
)  # fmt: skip
def test_accelerators_are_named_as_skypilot_names_them(text: str, count: int) -> None:
    assert require_accelerators(text) == text
    assert accelerator_count(text) == SkyPilot(executor="skypilot", accelerators=text).processes_per_node == count


@pytest.mark.parametrize(
    ("text", "meant"),
    [("8xH100", '"H100:8"'), ("8x H100", '"H100:8"'), ("8 H100", '"H100:8"'), ("8:H100", '"H100:8"'),
     ("H100x8", '"H100:8"'), ("H100 x 8", '"H100:8"'), ("H100:0", "NAME:COUNT"), ("H100:-1", "NAME:COUNT"),
     ("H100:x", "NAME:COUNT"), ("H100:8:2", "NAME:COUNT"), ("H100 :8", "NAME:COUNT"), (":8", "NAME:COUNT"),
     ("H100:", "NAME:COUNT"), ("8", '"H100:8"'), ("H100:inf", "NAME:COUNT"), ("", "NAME:COUNT")],
)  # fmt: skip
def test_accelerators_that_skypilot_would_refuse_name_what_is_meant(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=meant):
        SkyPilot(executor="skypilot", accelerators=text)
