"""Composition: what wins, where it came from, and what a mistake says."""

import pickle
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemotron_shared.config.compose import compose
from nemotron_shared.config.files import require_plain_numbers
from nemotron_shared.config.overrides import Said, override, override_key
from nemotron_shared.config.references import engine_of, resolve, resolve_section, setting
from nemotron_shared.system.errors import UserError

DEFAULT = """\
defaults:
  - backend: small
  - _self_
run:
  family: super3
  data: ${run.family}-data
train:
  lr: 0.1
  iters: 10
"""


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    folder = tmp_path / "stage" / "config"
    (folder / "backend").mkdir(parents=True)
    (folder / "default.yaml").write_text(DEFAULT)
    (folder / "tiny.yaml").write_text("defaults:\n  - default\n  - _self_\ntrain:\n  lr: 0.2\n")
    (folder / "backend" / "small.yaml").write_text("name: small\nwidth: 8\n")
    (folder / "backend" / "large.yaml").write_text("name: large\nnodes: 4\n")
    return folder


def values(configs: Path, choice: str, *overrides: str) -> dict:
    return resolve(compose(configs, choice, overrides).tree, lambda role, field: f"<{role}.{field}>")


def test_a_later_file_wins_and_an_override_wins_over_both(configs: Path) -> None:
    assert values(configs, "default")["train"] == {"lr": 0.1, "iters": 10}
    assert values(configs, "tiny")["train"] == {"lr": 0.2, "iters": 10}
    assert values(configs, "tiny", "train.lr=0.3")["train"] == {"lr": 0.3, "iters": 10}


def test_every_value_knows_its_origin(configs: Path) -> None:
    origins = compose(configs, "tiny", ["train.iters=5"]).origins
    assert origins["train.lr"] == "tiny.yaml:5"
    assert origins["run.family"] == "default.yaml:5"
    assert origins["backend.width"] == "backend/small.yaml:2"
    assert origins["train.iters"] == "command line"


def test_a_group_is_replaced_whole(configs: Path) -> None:
    assert values(configs, "tiny", "backend=large")["backend"] == {"name": "large", "nodes": 4}


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "train:\n  lr: 0.2\n", "defaults:\ntrain:\n  lr: 0.2\n"])
def test_an_own_config_that_builds_on_none_is_told_so(configs: Path, tmp_path: Path, text: str) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(text)
    with pytest.raises(UserError, match=r"own\.yaml: .*no 'defaults:'") as caught:
        compose(configs, str(own), ["run.family=super3"])
    assert "defaults:\n    - default\n    - _self_" in str(caught.value)
    own.write_text(f"run:\n  family: nano3\n{text.replace('defaults:', '')}")  # as a run records it
    assert values(configs, str(own), "run.family=super3")["run"] == {"family": "super3"}


def test_keys_can_be_added_and_deleted(configs: Path) -> None:
    changed = values(configs, "tiny", "+train.note=x", "++train.lr=1", "~train.iters")
    assert changed["train"] == {"lr": 1, "note": "x"}


@pytest.mark.parametrize("choice", ["tiny", "tiny.yaml", "config/tiny.yaml"])
def test_a_config_has_several_names(configs: Path, choice: str) -> None:
    assert values(configs, choice) == values(configs, "tiny")


def test_a_file_elsewhere_builds_on_the_stage(configs: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("defaults:\n  - tiny\n  - _self_\ntrain:\n  iters: 7\n")
    composed = compose(configs, str(own), ["backend=large"])
    assert resolve(composed.tree, lambda *_: None)["train"] == {"lr": 0.2, "iters": 7}
    assert composed.origins["train.iters"] == "mine.yaml:5"


@pytest.mark.parametrize(
    ("choice", "overrides", "message"),
    [
        ("tniy", [], "did you mean 'tiny'"),
        ("tiny", ["train.iter=3"], "did you mean 'train.iters'"),
        ("tiny", ["other.iters=nan"], "did you mean 'train.iters'"),
        ("tiny", ["=5"], "command line: '=5' names no setting"),
        ("tiny", ["+=5"], "command line: '+=5' names no setting"),
        ("tiny", ["train.iters=010"], "command line: train.iters: 010 is the number 8 in YAML"),
        ("tiny", ["backend=larg"], "did you mean 'large'"),
        ("tiny", ["train.lr=[1"], "command line: 'train.lr=[1'"),
        ("tiny", ["run.data={~/a: 1}"], "'run.data={~/a: 1}' cannot be read: it has a character that needs quotes"),
        ("nowhere/x.yaml", [], "no such file: nowhere/x.yaml"),
        ("nowhere.yaml", [], "no config named 'nowhere.yaml'"),
    ],
)
def test_a_mistake_names_the_remedy(configs: Path, choice: str, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        compose(configs, choice, overrides)
    assert message in str(caught.value)


def test_a_key_of_a_section_that_is_null_names_the_configs_that_have_it(configs: Path) -> None:
    (configs / "without.yaml").write_text("defaults: [tiny, _self_]\ndpo: null\n")
    (configs / "with.yaml").write_text("defaults: [tiny, _self_]\ndpo:\n  size: 4\n")
    (configs / "inherits.yaml").write_text("defaults: [with, _self_]\n")
    (configs / "broken.yaml").write_text("defaults: [gone]\n")
    with pytest.raises(UserError) as caught:
        compose(configs, "without", ["dpo.lr=0.1"])
    assert "unknown key 'dpo.lr'" in str(caught.value)
    assert caught.value.remedy == "'dpo' is not a section of without.yaml; a config with this section: inherits, with"


def test_broken_yaml_names_the_file(configs: Path) -> None:
    (configs / "bad.yaml").write_text("train: [1\n")
    with pytest.raises(UserError, match=r"bad\.yaml"):
        compose(configs, "bad", [])


def test_references_are_resolved_once(configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORPUS", "/corpus")
    (configs / "refs.yaml").write_text("a: ${art:data,path}/blend.json\nb: ${oc.env:CORPUS}/x\n")
    assert values(configs, "refs") == {"a": "<data.path>/blend.json", "b": "/corpus/x"}


def test_an_unset_variable_is_an_error(configs: Path) -> None:
    (configs / "refs.yaml").write_text("b: ${oc.env:SURELY_NOT_SET}\n")
    with pytest.raises(UserError, match="SURELY_NOT_SET"):
        values(configs, "refs")


def test_the_run_section_resolves_without_artifacts(configs: Path) -> None:
    section = resolve_section(compose(configs, "tiny", []).tree, "run")
    assert section == {"family": "super3", "data": "super3-data"}


def test_the_key_of_an_override() -> None:
    assert [override_key(text) for text in ("a.b=1", "+a.b=1", "++a=1", "~a.b")] == ["a.b", "a.b", "a", "a.b"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"mine": "mine"}, r"mine.yaml: its 'defaults' lead in a circle \(mine.yaml -> mine.yaml\)"),
        ({"mine": "other", "other": "other"}, r"mine.yaml: .* \(other.yaml -> other.yaml\)"),
        ({"mine": "other", "other": "mine"}, r"mine.yaml: .* \(mine.yaml -> other.yaml -> mine.yaml\)"),
    ],
)
def test_defaults_that_lead_back_to_their_own_file_are_one_error(configs: Path, files: dict, message: str) -> None:
    for name, builds_on in files.items():
        (configs / f"{name}.yaml").write_text(f"defaults: [{builds_on}, _self_]\n")
    with pytest.raises(UserError, match=message) as caught:
        compose(configs, "mine", [])
    assert caught.value.remedy


def test_a_circle_through_a_file_that_hides_the_stages_is_told(configs: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text("defaults: [tiny, _self_]\n")
    with pytest.raises(UserError, match=r"tiny.yaml -> tiny.yaml") as caught:
        compose(configs, str(tmp_path / "tiny.yaml"), [])
    assert caught.value.remedy == "'tiny' is this folder's file, not the stage's: rename it, such as to my_tiny.yaml"


@pytest.mark.parametrize(
    ("entry", "said", "remedy"),
    [
        ("below/x", "below/x.yaml: its 'defaults' name 'below/tiny'", "write '/tiny'"),
        ("sft/tiny", "mine.yaml: its 'defaults' name 'sft/tiny'", "write 'tiny'"),
        ("/a/folder/own", "mine.yaml: its 'defaults' name '/a/folder/own': a path from the root", "copy the file into"),
        ("tinny", "mine.yaml: its 'defaults' name 'tinny': no such config", "did you mean 'tiny'?"),
        ("zzz", "mine.yaml: its 'defaults' name 'zzz'", "there are: default, tiny"),
    ],
)
def test_defaults_that_name_no_file_are_told_what_to_write(
    configs: Path, tmp_path: Path, entry: str, said: str, remedy: str
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x.yaml").write_text("defaults: [tiny, _self_]\n")
    (tmp_path / "mine.yaml").write_text(f"defaults: [{entry}, _self_]\n")
    with pytest.raises(UserError) as caught:
        compose(configs, str(tmp_path / "mine.yaml"), [])
    assert caught.value.message.startswith(said)
    assert (caught.value.remedy or "").startswith(remedy)


@pytest.mark.parametrize(("text", "said"), [("null: 2", "'NoneType'"), ("train: {null: 3}", "'NoneType'"),
                                            ("train: !!set {a}", "set")])  # fmt: skip
def test_a_key_or_value_that_no_config_can_hold_is_told(configs: Path, text: str, said: str) -> None:
    (configs / "mine.yaml").write_text(f"defaults: [tiny, _self_]\n{text}\n")
    with pytest.raises(UserError, match=said) as caught:
        compose(configs, "mine", [])
    assert "ConfigCompositionException" not in str(caught.value)


@pytest.mark.parametrize("override", ["engine=null", "engine=3"])
def test_a_group_wants_a_name(override: str) -> None:
    stage = Path(__file__).parents[3] / "stages" / "sft" / "config"
    with pytest.raises(UserError, match="Config group override must be a string"):
        compose(stage, "tiny", [override])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 8)),
         "more than 20,000 values, with its aliases and references"),
        ("train: &a {iters: *a}\n", "'&a' contains itself"),
        (f"train: {'[' * 200_000}", "more than 50 levels"),
        (f"# {'x' * 1_000_000}", "larger than 1,000,000 bytes"),
    ],
)  # fmt: skip
def test_a_config_is_of_a_size_that_people_write(configs: Path, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=said):
        compose(configs, str(tmp_path / "mine.yaml"), [])


@pytest.mark.parametrize(
    ("value", "number"), [("010", "8"), ("-0_17", "-15"), ("1:30", "90"), ("12:30:00", "45000"), ("[8, 010]", "8")]
)
def test_a_number_that_yaml_takes_for_another_is_refused(
    configs: Path, tmp_path: Path, value: str, number: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"defaults: [tiny, _self_]\ntrain:\n  iters: {value}\n")
    with pytest.raises(UserError, match=rf"mine\.yaml:3: .* is the number {number} in YAML") as caught:
        compose(configs, str(file), [])
    meant = {"010": "10 or ", "-0_17": "-17 or ", "[8, 010]": "10 or "}.get(value, "")
    assert f"write {meant}{number}" in str(caught.value.remedy)


@pytest.mark.parametrize("value", ["007", "0", "00", "'010'", "04:00:00", "1_000", "a:1:30", "0.5"])
def test_other_numbers_and_texts_are_read_as_people_do(value: str) -> None:
    require_plain_numbers("mine.yaml", f"a: {value}\n")


@pytest.mark.parametrize(
    ("first", "line"),
    [
        ("xxxxxxxxxx", '"' + "${.aN}" * 4 + '"'),
        ("[1, 2, 3]", "[" + ", ".join(["'${free.aN}'"] * 9) + "]"),
        ("{x: 1}", "{l: '${free.aN}', r: '${free.aN}'}"),
        ("x" * 2000, '"${oc.select:free.aN,1}${oc.select:free.aN,1}"'),
    ],
)
def test_references_do_not_multiply_without_end(configs: Path, first: str, line: str) -> None:
    lines = "".join(f"  a{n}: {line.replace('N', str(n - 1))}\n" for n in range(1, 31))
    (configs / "bomb.yaml").write_text(f"free:\n  a0: {first}\n{lines}")
    with pytest.raises(UserError, match=r"^free\.a\d.*: with its references more than 20,000 values, or 1,0") as caught:
        values(configs, "bomb")
    assert caught.value.remedy


def test_nor_for_who_asks_for_one_value_or_takes_it_out(configs: Path) -> None:
    lines = "".join(f"a{n}: {f'${{a{n - 1}}}' * 4}\n" for n in range(1, 31))
    (configs / "bomb.yaml").write_text(f"a0: xxxxxxxxxx\n{lines}")
    with pytest.raises(UserError, match=r"^a30: with its references more than 20,000 values"):
        setting(compose(configs, "bomb", []).tree, "a30")
    with pytest.raises(UserError, match=r"with its references more than 20,000 values"):
        compose(configs, "bomb", ["~a30"])


def test_references_are_counted_before_they_are_read(configs: Path) -> None:
    (configs / "long.yaml").write_text(f"a: 1\nb: '{'${a}' * 30_000}'\n")
    with pytest.raises(UserError, match="more than 20,000 values, with its aliases and references"):
        compose(configs, "long", [])


def test_a_reference_that_leads_nowhere_is_told_to_who_asks_early(configs: Path) -> None:
    (configs / "refs.yaml").write_text("engine: {name: '${nothing}'}\n")
    with pytest.raises(UserError, match=r"engine\.name: Interpolation key 'nothing' not found"):
        engine_of(compose(configs, "refs", []).tree)


def test_what_a_config_builds_on_is_too(configs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [tiny, {backend: deep}, _self_]\n")
    (tmp_path / "backend").mkdir()
    (tmp_path / "backend" / "deep.yaml").write_text(f"width: {'[' * 200_000}")
    with pytest.raises(UserError, match=r"deep\.yaml: more than 50 levels"):
        compose(configs, str(tmp_path / "mine.yaml"), [])


@pytest.mark.parametrize(
    "entry",
    ["bomb", "bomb@foo", "bomb/small@foo.bar", "/bomb/small", "{optional bomb: small}", "{bomb: [small]}",
     "{optional bomb@a: [small]}", "{backend: large}"],
)  # fmt: skip
def test_however_a_config_names_what_it_builds_on(configs: Path, tmp_path: Path, entry: str) -> None:
    bomb = f"width: {'[' * 60}{']' * 60}\n"
    (tmp_path / "mine.yaml").write_text(f"defaults: [tiny, {entry}, _self_]\n")
    for name in ("bomb.yaml", "bomb/small.yaml", "backend/small.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(bomb)
    (tmp_path / "backend" / "large.yaml").write_text("defaults: [small]\n")
    with pytest.raises(UserError, match="more than 50 levels"):
        compose(configs, str(tmp_path / "mine.yaml"), [])


@pytest.mark.parametrize(
    "entry",
    ["../outside/x@free", "///PLACE/outside/x@free", "/PLACE/outside/x@free", "/../outside/x@free", "link@free",
     "folder/x@free", "{/../outside@free: x}", "{optional ../outside@free: [x]}"],
)  # fmt: skip
def test_a_config_builds_on_no_file_outside(configs: Path, tmp_path: Path, entry: str) -> None:
    for name in ("outside/x.yaml", "own/deep/in.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("stolen: 1\n")
    (tmp_path / "own" / "link.yaml").symlink_to(tmp_path / "outside" / "x.yaml")
    (tmp_path / "own" / "folder").symlink_to(tmp_path / "outside")
    own = tmp_path / "own" / "mine.yaml"
    own.write_text(f"defaults: [tiny, {entry.replace('PLACE', str(tmp_path))}, _self_]\n")
    with pytest.raises(UserError, match=r"'defaults' lead to .*, outside of the"):
        compose(configs, str(own), [])


@pytest.mark.parametrize("entries", ["fN@a, fN@b", "fN, gN"])
def test_what_a_config_builds_on_does_not_multiply(configs: Path, entries: str) -> None:
    for number in range(30):
        for name in "fg":
            text = f"defaults: [{entries.replace('N', str(number + 1))}]\n"
            (configs / f"{name}{number}.yaml").write_text(text if number < 29 else "x: 1\n")
    with pytest.raises(UserError, match="the 501st file that 'defaults' lead to") as caught:
        compose(configs, "f0", [])
    assert caught.value.remedy


def test_an_override_that_is_too_deep_is_told_so(configs: Path) -> None:
    with pytest.raises(UserError, match="with what the command line sets, is nested too deeply"):
        compose(configs, "tiny", [f"+deep={'[' * 2000}{']' * 2000}"])


def test_defaults_depend_on_nothing_else(configs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text('defaults: [tiny, "${oc.env:NOPE,backend/small}", _self_]\n')
    with pytest.raises(UserError, match=r"mine\.yaml: defaults: '\$\{' cannot stand") as caught:
        compose(configs, str(tmp_path / "mine.yaml"), [])
    assert caught.value.remedy


def test_no_file_can_ask_for_code_not_even_in_a_list(configs: Path) -> None:
    mine = configs.parent / "mine.yaml"
    mine.write_text(
        "defaults: [tiny, _self_]\nfree: {args: [{trust_remote_code: true, n: 1}, [{trust_remote_code: 1}]]}\n"
    )
    composed = compose(configs, str(mine), ["+more={list:[{trust_remote_code:true}]}"])
    assert sorted(composed.trust_keys) == [
        "free.args[0].trust_remote_code", "free.args[1][0].trust_remote_code", "more.list[0].trust_remote_code",
    ]  # fmt: skip
    made = resolve(composed.tree, lambda role, field: "")
    assert made["free"] == {"args": [{"n": 1}, [{}]]} and made["more"] == {"list": [{}]}


@pytest.mark.parametrize(
    "text",
    [
        "~/models/mine",
        "./my models/a (copy)/x",
        "a=b.jsonl",
        "s3://bucket/key?x=1&y=2",
        "C:\\data\\x.jsonl",
        "über/straße.jsonl",
        "#1.jsonl",
        "a,b.jsonl",
        "it's.jsonl",
        'the "new" one',
        "data/[ab]*.jsonl",
        "data/{a,b}.jsonl",
        "hf://org/name@main",
        "#### (.+)",
        "a;b|c<d>!^`",
        "~/${run.family}/x",
        "",
    ],
)
def test_a_value_is_what_was_typed(configs: Path, text: str) -> None:
    composed = compose(configs, "default", [Said(f"run.data={text}", "env.toml [far]"), f"++run.more={text}"])
    found = OmegaConf.to_container(composed.tree.run, resolve=False)
    assert (found["data"], found["more"]) == (text, text)
    assert composed.origins["run.data"] == "env.toml [far]"


def test_an_override_keeps_its_origin_when_it_is_sent_to_another_process() -> None:
    sent = pickle.loads(pickle.dumps(Said("run.seed=3", "env.toml [far]")))
    assert sent == "run.seed=3" and sent.origin == "env.toml [far]"


def test_the_entries_of_a_list_are_what_was_typed(configs: Path) -> None:
    composed = compose(configs, "default", ["+run.more=[~/a b, ü=1,3,null]"])
    assert composed.tree.run.more == ["~/a b", "ü=1", 3, None]


@pytest.mark.parametrize(
    "text",
    [
        "a,b",
        "a[1]{x}",
        "it's",
        "c:\\d",
        "ends in \\",
        "\\'",
        'say "no"',
        "two\nlines",
        "null",
        "1e5",
        "",
        "./m:v1",
        "ünï=1",
    ],
)
def test_any_text_can_be_an_override(configs: Path, text: str) -> None:
    assert compose(configs, "default", [override("run.data", text)]).tree.run.data == text
    assert compose(configs, "default", [override("run.data", [text, "b"])]).tree.run.data == [text, "b"]


@pytest.mark.parametrize("value", [{"a": 16, "b": [None, "two words", {"c": 0.5}], "d": {}}, [], None, True, 1e-05])
def test_any_value_can_be_an_override(configs: Path, value: object) -> None:
    found = compose(configs, "default", [override("+run.more", value)]).tree.run.more
    assert (OmegaConf.to_container(found) if OmegaConf.is_config(found) else found) == value
