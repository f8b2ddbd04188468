"""FP8 through ModelOpt: each planted fault is named, and what it writes is put right or refused."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from passport_support import change_json, change_weights, copied, in_8_bits, in_shards, make, with_rows

from nemotron_app.main import main
from nemotron_engines.modeling.stored import size_of, stored_in
from nemotron_serving import fp8
from nemotron_serving.passport.alone import by_itself
from nemotron_serving.passport.compare import verified
from nemotron_serving.programs import Program
from nemotron_shared.artifacts import Artifact, Store

MOE = "backbone.layers.1.mixer."
UP, OTHER = f"{MOE}experts.1.up_proj", f"{MOE}experts.0.up_proj"
LIST = "config.json: quantization_config.ignore"
MARK = ".\0backbone.pt_name_sentinel"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make(tmp_path_factory.mktemp("fp8") / "model", "super3_tiny")


@pytest.fixture(scope="module")
def sound(model: Path) -> Path:
    """As ModelOpt writes it, with a list that is right."""
    folder = copied(model, model.parent / "sound")
    in_8_bits(folder, "modelopt")
    return folder


def test_a_sound_folder_raises_no_alarm_and_says_what_was_not_run(
    monkeypatch: pytest.MonkeyPatch, model: Path, sound: Path
) -> None:
    monkeypatch.setenv("NEMOTRON_ENGINES", str(model.parent / "none"))
    passport = verified(Store(model.parent / "home"), sound, Artifact.external(model))
    assert passport.findings == []
    tensors, config, numbers, _ = passport.parts
    assert "70 F8_E4M3" in dict(tensors.facts)["types"] and "2 modules: lm_head" in dict(config.facts)[LIST]
    assert "KL" in dict(numbers.facts)["transformers, weights alone, random tokens"]
    assert "what enters a layer is not rounded" in numbers.not_run[0] and "vllm is not installed" in numbers.not_run[1]
    assert by_itself(sound).findings == []


def put(name: str, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], Any]:
    return lambda folder: change_weights(folder, lambda x: x.update({name: value(x[name])}))


def drop(name: str) -> Callable[[Path], Any]:
    return lambda folder: change_weights(folder, lambda x: x.pop(name))


def swap(*ends: str) -> Callable[[Path], Any]:
    """Exchange tensors of two experts."""

    def change(x: Tensors) -> None:
        for end in ends:
            x[f"{UP}.{end}"], x[f"{OTHER}.{end}"] = x[f"{OTHER}.{end}"], x[f"{UP}.{end}"]

    return lambda folder: change_weights(folder, change)


def listed(change: Callable[[list[str]], Any]) -> Callable[[Path], Any]:
    """Change the list in both files."""

    def changed(folder: Path) -> None:
        change_json(folder, "config.json", lambda x: change(x["quantization_config"]["ignore"]))
        change_json(folder, fp8.TOLD, lambda x: change(x["quantization"]["exclude_modules"]))

    return changed


def one_row(values: torch.Tensor) -> torch.Tensor:
    changed = values.float()
    changed[0] *= -1
    return changed.to(values.dtype)


FAULTS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "scale dropped": (drop(f"{UP}.weight_scale"), f"{UP}.weight", "its scale is missing"),
    "scale doubled": (put(f"{UP}.weight_scale", lambda x: 2 * x), f"{UP}.weight", "times as large: its scale"),
    "scales swapped": (swap("weight_scale"), f"{UP}.weight", "times as large: its scale is not that of these weights"),
    "experts swapped": (swap("weight", "weight_scale"), f"{UP}.weight", f"holds the values of {OTHER}.weight"),
    "one row": (put(f"{UP}.weight", one_row), f"{UP}.weight", "is further off than rounding to F8_E4M3 explains"),
    "tensor missing": (drop(f"{UP}.weight"), f"{UP}.weight", "is missing in the export"),
    "another type": (put(f"{UP}.weight", lambda x: x.float().to(torch.float8_e5m2)), f"{UP}.weight",
                     "is stored as F8_E5M2, and quant_algo FP8 means F8_E4M3"),
    "cast without its scale": (put(f"{UP}.weight", torch.Tensor.float), f"{UP}.weight_scale", "was it applied?"),
    "not a number": (put(f"{UP}.weight", lambda x: (x.float() * torch.nan).to(x.dtype)), f"{UP}.weight", "NaN"),
    "scale of inputs lost": (drop(f"{UP}.input_scale"), f"{UP}.input_scale", "is missing"),
    "scale of inputs not finite": (put(f"{UP}.input_scale", lambda x: x / 0), f"{UP}.input_scale", "NaN or infinity"),
    "scale of inputs zero": (put(f"{UP}.input_scale", torch.zeros_like), f"{UP}.input_scale", "is all zero"),
    "kept tensor": (put("backbone.norm_f.weight", lambda x: x * 1.01), "backbone.norm_f.weight", "is 1.01 times"),
    "list damaged": (listed(lambda x: x.__setitem__(0, f"lm_head{MARK}")), LIST, "1 entries are damaged"),
    "entry lost": (listed(lambda x: x.remove("lm_head")), "lm_head.weight", "and ignore does not name it"),
    "quantised, and in the list": (listed(lambda x: x.append(UP)), f"{UP}.weight", "says that it is not"),
    "no such module": (listed(lambda x: x.append("model.head")), LIST, "names model.head, which is not a module"),
    "two lists": (lambda f: change_json(f, fp8.TOLD, lambda x: x["quantization"]["exclude_modules"].pop()),
                  f"{fp8.TOLD}: exclude_modules", "is another list"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(model: Path, sound: Path, tmp_path: Path, fault: str) -> None:
    damage, where, what = FAULTS[fault]
    folder = copied(sound, tmp_path / "folder")
    damage(folder)
    findings = verified(Store(tmp_path / "home"), folder, Artifact.external(model), run=False).findings
    assert what in " and ".join(one.message for one in findings if one.key == where), findings
    assert len(findings) <= 4, findings


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return with_rows(tmp_path_factory.mktemp("rows"), "super3_tiny")


WORDS = ["--for", "vllm", "--quantize", "FP8"]
DAMAGED = [f"lm_head{MARK}", f"backbone.embeddings{MARK}", *(f"backbone.layers.{n}{MARK}*" for n in (0, 2, 3, 5)),
           *(f"backbone.layers.{n}.mixer.{name}{MARK}" for n in (1, 4, 6)
             for name in ("gate", "fc1_latent_proj", "fc2_latent_proj"))]  # fmt: skip


class Own(Program):
    python = Path(sys.executable)


def as_modelopt(
    monkeypatch: pytest.MonkeyPatch, store: Store, place: Path, change: Callable[[Path], Any] = lambda folder: None,
    last: str = "",
) -> None:  # fmt: skip
    """A program in ModelOpt's place that writes what it is known to write, with its damaged list."""
    written = place / "written"
    written.mkdir()
    for name in ("config.json", "model.safetensors"):
        (written / name).write_bytes((store.resolve("trained").path / name).read_bytes())
    in_8_bits(written, "modelopt", only="experts")
    listed(lambda entries: entries.__setitem__(slice(None), DAMAGED))(written)
    change(written)
    program = place / "program.py"
    program.write_text(
        "import json, pathlib, shutil, sys\n"
        "assert sys.argv[3] == 'MAMBA_MOE_FP8_CONSERVATIVE_CFG'\n"
        "assert [len(row) for row in json.loads(pathlib.Path(sys.argv[4]).read_text())] == [40] * 6\n"
        f"shutil.copytree({str(written)!r}, sys.argv[2])\n{last}\n"
    )
    monkeypatch.setattr(fp8, "MODELOPT", Own("ModelOpt", "modelopt", (str(program),)))


def export(store: Store, out: Path, *words: str) -> int:
    return main(["export", "trained", str(out), "--home", str(store.home), *(words or WORDS)])


def test_the_damaged_list_is_put_right_and_all_else_is_the_model(
    monkeypatch: pytest.MonkeyPatch, store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    as_modelopt(monkeypatch, store, tmp_path, lambda f: put("backbone.norm_f.weight", lambda x: x.bfloat16())(f))
    assert export(store, tmp_path / "out") == 0
    said = capfd.readouterr()
    assert r"15 damaged entries of 15, such as 'lm_head.\x00backbone.pt_name_sentinel'" in said.err + said.out
    told = json.loads((tmp_path / "out" / fp8.TOLD).read_text())["quantization"]["exclude_modules"]
    assert told == json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["ignore"]
    modules = {name.removesuffix(".weight") for name in stored_in(store.resolve("trained").path)}
    assert set(told) < modules and "backbone.layers.0.mixer.conv1d" in told and UP not in told
    passport = json.loads((tmp_path / "out" / "passport.json").read_text())
    assert passport["same"] and "held-out rows" in json.dumps(passport["parts"][3]["facts"])
    assert "vllm serve out" in (tmp_path / "out" / "README.md").read_text()
    assert main(["verify", str(tmp_path / "out"), "--alone", "--home", str(store.home)]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["super3", "sft", "-c", "tiny", "run.model=./out", f"run.home={store.home}", "--dry-run"]) == 1
    assert "would drop the scales of 54 tensors" in "".join(capfd.readouterr())


def test_a_model_in_several_files_stays_in_several_files(
    monkeypatch: pytest.MonkeyPatch, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_modelopt(monkeypatch, store, tmp_path)
    several, out = with_rows(tmp_path / "several", "super3_tiny", change=in_shards), tmp_path / "out"
    assert export(several, out) == 0, capsys.readouterr().err
    own, made = stored_in(several.resolve("trained").path), stored_in(out)
    assert {name: made[name].file.name for name in own} == {name: one.file.name for name, one in own.items()}
    assert made[f"{UP}.weight_scale"].file == made[f"{UP}.input_scale"].file == made[f"{UP}.weight"].file
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: one.file.name for name, one in made.items()}
    assert index["metadata"]["total_size"] == sum(map(size_of, made.values()))
    assert json.loads((out / "passport.json").read_text())["same"]
    assert main(["verify", str(out), "--alone", "--home", str(several.home)]) == 0
    change_json(out, "model.safetensors.index.json", lambda x: x["weight_map"].pop(f"{UP}.weight_scale"))
    capsys.readouterr()
    assert main(["verify", str(out), "--alone", "--home", str(several.home)]) == 2
    assert f"does not name {UP}.weight_scale" in capsys.readouterr().err


BROKEN: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "it fails": (lambda f: None, "sys.exit('CUDA is not here')", "ModelOpt failed: CUDA is not here"),
    "nothing quantised": (lambda f: change_weights(f, lambda x: [
        x.update({k: v.float()}) if "weight" in k and "scale" not in k else x.pop(k)
        for k, v in list(x.items()) if v.itemsize == 1 or k.endswith("_scale")]), "", "quantised nothing"),
    "another name": (lambda f: change_weights(f, lambda x: x.update({"mtp.up.weight": x[f"{UP}.weight"]})), "",
                     "wrote mtp.up.weight, for which the model has no place"),
    "an unknown scale": (lambda f: change_weights(f, lambda x: x.update({f"{UP}.pre_quant_scale": torch.ones(1)})), "",
                         f"wrote {UP}.pre_quant_scale, for which the model has no place"),
    "an unknown entry": (listed(lambda x: x.append("model.head")), "", "model.head names no module of the model"),
    "an entry too many": (listed(lambda x: x.append(f"{UP}{MARK}")), "", "which is quantised"),
    "an entry too few": (listed(lambda x: x.pop(0)), "", "left lm_head as it is, and does not say so"),
    "a wrong scale": (put(f"{UP}.weight_scale", lambda x: 2 * x), "", "times as large: its scale"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_what_modelopt_gets_wrong_is_one_error_and_no_folder(
    monkeypatch: pytest.MonkeyPatch, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    change, last, what = BROKEN[fault]
    as_modelopt(monkeypatch, store, tmp_path, change, last)
    assert export(store, tmp_path / "out") == 2
    said = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert what in said and said.count("error:") == 1, said
    assert {one.name for one in tmp_path.iterdir()} == {"written", "program.py"}


def test_what_is_not_offered_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEMOTRON_ENGINES", str(tmp_path / "none"))
    for words, said in (
        (["--quantize", "FP8"], "say --for vllm, and no other"),
        (["--for", "vllm", "--for", "llama.cpp", "--quantize", "FP8"], "say --for vllm, and no other"),
        (["--for", "llama.cpp", "--quantize", "FP8"], "llama.cpp has its own types"),
        (["--for", "vllm", "--quantize", "Q8_0"], "add --for llama.cpp"),
        (["--for", "vllm", "--quantize", "INT8"], "not offered: ModelOpt writes it as W8A8_SQ_PER_CHANNEL"),
        (["--adapter", *WORDS], "leave --adapter out"),
        (WORDS, "nemotron engine install modelopt"),
    ):
        assert export(store, tmp_path / "out", *words) == 2
        assert said in re.sub(r"\s+", " ", capsys.readouterr().err), words
    as_modelopt(monkeypatch, store, tmp_path)
    assert main(["export", str(store.resolve("trained").path), str(tmp_path / "out"), *WORDS]) == 2
    assert "FP8 needs rows that the model was trained on" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_tells_how_large_it_will_be(
    monkeypatch: pytest.MonkeyPatch, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_modelopt(monkeypatch, store, tmp_path)
    assert export(store, tmp_path / "out", *WORDS, "--dry-run", "--json") == 0
    told = json.loads(capsys.readouterr().out)["files"]["model.safetensors"]
    assert export(store, tmp_path / "out") == 0
    assert told == pytest.approx((tmp_path / "out" / "model.safetensors").stat().st_size, rel=0.05)
