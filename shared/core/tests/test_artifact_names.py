"""Every accepted way to name an artifact, and that nothing else gets through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemotron_shared.artifacts.names import (
    Reference,
    check_alias,
    check_name,
    is_path,
    parse_exact,
    parse_reference,
)
from nemotron_shared.system.errors import UserError


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("super3-sft-model", "super3-sft-model", "latest"),
        ("super3-sft-model:latest", "super3-sft-model", "latest"),
        ("super3-sft-model:v2", "super3-sft-model", 2),
        ("super3-sft-model:12", "super3-sft-model", 12),
        ("super3-sft-model:best", "super3-sft-model", "best"),
        ("art://super3-sft-model:v2", "super3-sft-model", 2),
        ("art://sft", "super3-sft-model", "latest"),
        ("pretrain", "super3-pretrain-model", "latest"),
        ("sft", "super3-sft-model", "latest"),
        ("rl", "super3-rl-model", "latest"),
        ("eval:v3", "super3-eval-results", 3),
        ("sft:v2", "super3-sft-model", 2),
        ("sft-model:best", "super3-sft-model", "best"),
        ("pretrain-data", "super3-pretrain-data", "latest"),
        ("sft-data:latest", "super3-sft-data", "latest"),
        ("rl-data:1", "super3-rl-data", 1),
        ("eval-data", "super3-eval-data", "latest"),
        ("super3/rl/model:latest", "super3-rl-model", "latest"),
        ("super3/rl/rlvr1/data:latest", "super3-rl-rlvr1-data", "latest"),
        ("sft/data:v2", "super3-sft-data", 2),
        ("ModelArtifact-pretrain", "super3-pretrain-model", "latest"),
        ("ModelArtifact-sft:v4", "super3-sft-model", 4),
        ("ModelArtifact-rl:latest", "super3-rl-model", "latest"),
        ("PretrainBlendsArtifact", "super3-pretrain-data", "latest"),
        ("SFTDataArtifact", "super3-sft-data", "latest"),
        ("SFTDataArtifact-sft", "super3-sft-data", "latest"),
        ("DataBlendsArtifact-rl", "super3-rl-data", "latest"),
        ("SplitJsonlDataArtifact-rl:v2", "super3-rl-data", 2),
        ("my_data.v1-x", "my_data.v1-x", "latest"),
    ],
)
def test_every_form_becomes_one_reference(text: str, name: str, version: int | str) -> None:
    assert parse_reference(text) == Reference(name, version)


def test_the_family_completes_short_names_and_class_names_only() -> None:
    assert parse_reference("sft:v2", family="nano3") == Reference("nano3-sft-model", 2)
    assert parse_reference("ModelArtifact-rl", family="nano3") == Reference("nano3-rl-model", "latest")
    assert parse_reference("super3-rl-model", family="nano3") == Reference("super3-rl-model", "latest")


@pytest.mark.parametrize(
    "text",
    [
        "", ":v2", "art://", "sft:", "sft:v0", "sft:0", "sft:v01", "sft:-1", "sft:v2:v3", "sft:BEST", "sft:a b",
        "sft:../x", "sft:" + "9" * 5000, "..", "../x", "a/../b", "/etc/passwd", "a//b", "a/", "~", "-x", ".x", "x y",
        "x\n", "sft:v2\n", "ähnlich", "Super3-sft-model", "modelArtifact-sft", "ModelArtifact-eval", "x" * 101,
        "a\\b", "a\0b", "sft:v٣",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_reference(text)
    assert caught.value.remedy


def test_the_remedy_names_what_was_probably_meant() -> None:
    with pytest.raises(UserError, match="did you mean 'sft'"):
        parse_reference("SFT:v2")
    with pytest.raises(UserError, match="did you mean 'SFTDataArtifact-sft'"):
        parse_reference("SftDataArtifact-sft")


@given(st.text(max_size=30), st.sampled_from(["", "art://", "super3/", "sft:", "ModelArtifact-"]))
def test_what_is_accepted_can_neither_leave_the_store_nor_change_when_read_again(text: str, before: str) -> None:
    try:
        reference = parse_reference(before + text)
    except UserError:
        return
    assert "/" not in reference.name and not reference.name.startswith(".")
    assert parse_reference(str(reference)) == reference


def test_names_and_aliases_are_checked() -> None:
    check_name("super3-sft-model")
    check_alias("best")
    for alias in ("latest", "v1", "3", "v01", "Best", "a/b", ""):
        with pytest.raises(UserError):
            check_alias(alias)
    for name in ("", ".", "..", "a/b", "A", "x" * 101):
        with pytest.raises(UserError):
            check_name(name)


def test_exact_references_are_only_those_that_manifests_record() -> None:
    assert parse_exact("super3-sft-model:v2") == Reference("super3-sft-model", 2)
    assert parse_exact("sft:v2") == Reference("sft", 2)
    for text in ("super3-sft-model", "super3-sft-model:latest", "super3-sft-model:2", "a/b:v1", "a:v0"):
        assert parse_exact(text) is None


def test_a_path_starts_like_one() -> None:
    assert all(is_path(text) for text in ("/data/model", "./model", "../model", "~/model", ".", ".."))
    assert not any(is_path(text) for text in ("model", "super3/sft/model", "sft:v2", ".hidden"))
