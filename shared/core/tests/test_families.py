"""Families are YAML files: what they say is checked, and a twin has the kinds of layers of the large model."""

from pathlib import Path

import pytest

from nemotron_shared import families as module
from nemotron_shared.families import SMALL, TWIN, Family, architecture, families, read_family
from nemotron_shared.system.errors import UserError

HYBRIDS = [name for name in families() if name != "super49b"]  # its layers are of another kind


def kinds(name: str) -> tuple[set[str], bool]:
    """The kinds of layers, and whether the experts work in a latent space."""
    fields = architecture(name)
    return set(fields["hybrid_override_pattern"]), fields["moe_latent_size"] is not None


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_twin_has_the_kinds_of_layers_of_its_model(family: str) -> None:
    assert kinds(family) == kinds(f"{family}{TWIN}") == kinds(f"{family}{SMALL}")


def test_super_is_the_default_and_comes_first() -> None:
    assert next(iter(families())) == "super3"
    assert {"nano3", "ultra3", "lightning35", "super49b"} < set(families())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a list\n", "not a family"),
        ("stages: [sft]\n", "not a family"),
        ("title: [\n", "not valid YAML"),
        ("title: mine\ntinny: {}\n", "a family has no 'tinny'\n  did you mean 'tiny'?"),
        ("title: mine\nstages: [stf]\n", "no stage 'stf'\n  did you mean 'sft'?"),
        ("title: mine\nstages: sft\n", "stages: 'sft' is not a list"),
        ("title: mine\narchitecture: nano3\n", "architecture: 'nano3' is not a mapping"),
    ],
)
def test_a_wrong_file_is_one_clear_error(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_family(file)
    assert str(caught.value).startswith(str(file))
    assert said in str(caught.value)


@pytest.fixture
def with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {
        "mine": Family("Mine", architecture={"like": "nano3", "hidden_size": 2048}),
        "round": Family("Round", architecture={"like": "about"}),
        "about": Family("About", architecture={"like": "round"}),
        "silent": Family("Silent"),
    }
    known = families() | mine
    monkeypatch.setattr(module, "families", lambda: known)


@pytest.mark.usefixtures("with_ours")
def test_a_family_like_another_says_what_differs() -> None:
    assert architecture("mine") == architecture("nano3") | {"hidden_size": 2048}
    assert architecture("mine_tiny") == architecture("super3_tiny")
    assert architecture("mine_small") == architecture("super3_small")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("round", "each is like the next: round -> about -> round"),
        ("silent", "the family silent does not describe one"),
        ("nano", "no architecture 'nano'\n  did you mean 'nano3'?"),
        ("nano3_small_tiny", "no architecture"),
        ("nano3_tinny", "did you mean 'nano3_tiny'?"),
    ],
)
@pytest.mark.usefixtures("with_ours")
def test_an_architecture_that_nobody_describes_is_one_clear_error(name: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        architecture(name)
    assert said in str(caught.value)
