"""Model folders that bring code: nothing of it runs unasked, and nobody is asked on the terminal."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemotron_shared.models.folder import known_types, needs_code
from nemotron_shared.system.errors import UserError

pytestmark = pytest.mark.slow  # torch and transformers

CHOICES = SimpleNamespace(attn_implementation="sdpa", allow_reference_kernels=False)
OWN = """
from pathlib import Path
import torch
from transformers import PretrainedConfig, PreTrainedModel
Path({mark!r}).touch()
class Config(PretrainedConfig):
    model_type = "own_kind"
class Model(PreTrainedModel):
    config_class = Config
    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(2, 2, bias=False)
        self.post_init()
"""


class Opens:
    """What a pickle calls when it is read without care."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return Path.touch, (self.mark,)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that is there when code of a model has run."""
    return tmp_path / "it-ran"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from nemotron_data.tokenizers.tiny import save_tokenizer
    from nemotron_engines.modeling.build import save_random_model
    from nemotron_shared.config.schema import ModelSection

    folder = tmp_path_factory.mktemp("tiny")
    save_tokenizer(folder)
    save_random_model(ModelSection(architecture="super3_tiny", overrides={}), folder, 7, folder)
    return folder


def with_code(folder: Path, mark: Path, **fields: str) -> Path:
    """The folder with Python files that its config.json names."""
    (folder / "own.py").write_text(OWN.format(mark=str(mark)))
    file = folder / "config.json"
    before = json.loads(file.read_text()) if file.is_file() else {}
    auto_map = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    file.write_text(json.dumps(before | fields | {"auto_map": auto_map}))
    return folder


def test_a_pickle_is_read_weights_only(tiny: Path, tmp_path: Path, mark: Path) -> None:
    import torch

    from nemotron_engines.modeling.build import load_model

    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Opens(mark)}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="its weights cannot be read"):
        load_model(folder, CHOICES)
    assert not mark.exists()


def test_a_type_that_the_library_knows_runs_its_own_class(tiny: Path, tmp_path: Path, mark: Path) -> None:
    from nemotron_engines.modeling.build import load_model

    folder = with_code(shutil.copytree(tiny, tmp_path / "model"), mark)
    assert type(load_model(folder, CHOICES, trusted=True)).__module__.startswith("transformers.models.nemotron_h.")
    assert not mark.exists()


def test_another_type_runs_its_code_only_when_it_is_trusted(tmp_path: Path, mark: Path, monkeypatch) -> None:
    import torch
    from safetensors.torch import save_file

    from nemotron_engines.modeling.build import load_model, save_model

    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the terminal was asked"))
    (tmp_path / "model").mkdir()
    folder = with_code(tmp_path / "model", mark, model_type="own_kind")
    save_file({"layer.weight": torch.zeros(2, 2)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="needs the Python files"):
        load_model(folder, CHOICES)
    assert not mark.exists()
    plain = SimpleNamespace(attn_implementation="eager", allow_reference_kernels=False)
    model = load_model(folder, plain, trusted=True)
    assert mark.exists()
    save_model(model, folder, tmp_path / "saved")
    assert type(load_model(tmp_path / "saved", plain, trusted=True)).__name__ == "Model", "the code went along"


@pytest.mark.parametrize("reference", ["own.Model", "elsewhere/code--own.Model"])
def test_a_part_of_a_model_runs_no_code_and_nobody_is_asked(tmp_path: Path, mark: Path, monkeypatch, reference) -> None:
    from transformers import CONFIG_MAPPING, AutoModel

    from nemotron_engines.modeling.build import load_model

    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the terminal was asked"))
    (tmp_path / "model").mkdir()
    folder = with_code(tmp_path / "model", mark)
    # transformers knows the config of TrOCR, but has no AutoModel of it
    part = {"model_type": "trocr", "auto_map": {"AutoModel": reference}, "_name_or_path": str(folder)}
    (folder / "config.json").write_text(json.dumps({"model_type": "fuyu", "text_config": part}))
    with pytest.raises(UserError, match=r"needs the Python files|is in another repository"):
        load_model(folder, CHOICES)
    with pytest.raises(ValueError, match="trust_remote_code"):  # should it ever come so far
        AutoModel.from_config(CONFIG_MAPPING["fuyu"](text_config=part).text_config)
    assert not mark.exists()


def test_the_config_does_not_choose_the_code_of_its_layers(tiny: Path, tmp_path: Path) -> None:
    from transformers import PreTrainedConfig

    from nemotron_engines.modeling.build import count_parameters, load_model, read_config

    folder = shutil.copytree(tiny, tmp_path / "model")
    asked = {"attn_implementation": "flash_attention_2", "experts_implementation": "none_such"}
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | asked))
    assert load_model(folder, CHOICES).config._attn_implementation == "sdpa"
    asked_too = read_config(folder)
    asked_too._attn_implementation = "flash_attention_2"
    assert count_parameters(asked_too) > 0
    file.write_text(json.dumps({"model_type": "gemma3", "text_config": asked}))
    config = read_config(folder)
    assert isinstance(config, PreTrainedConfig)
    assert config.text_config._attn_implementation is config.text_config._experts_implementation is None


def test_the_table_of_types_is_the_librarys() -> None:
    from transformers import CONFIG_MAPPING

    assert set(CONFIG_MAPPING.keys()) - known_types() == set()
    assert not needs_code({"model_type": "nemotron_h", "auto_map": {"AutoConfig": "a.B"}})
    assert needs_code({"model_type": "own_kind", "auto_map": {"AutoConfig": "a.B"}})


def test_a_length_that_is_no_number_names_the_file(tiny: Path, tmp_path: Path) -> None:
    from nemotron_engines.modeling.build import load_tokenizer

    file = shutil.copytree(tiny, tmp_path / "model") / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": "x"}))
    with pytest.raises(UserError, match=r"tokenizer_config\.json: model_max_length is not a number"):
        load_tokenizer(file.parent)


def test_a_tokenizers_own_template_has_limits(tmp_path: Path) -> None:
    import jinja2

    from nemotron_data.tokenizers.tiny import save_tokenizer
    from nemotron_engines.modeling.build import load_tokenizer

    save_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    mine = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert (
        tokenizer.apply_chat_template(talk, chat_template=mine, tokenize=False)
        == "user: a<|im_end|>assistant: b<|im_end|>"
    )
    open_end = tokenizer.apply_chat_template(talk, chat_template=mine, tokenize=False, continue_final_message=True)
    assert open_end == "user: a<|im_end|>assistant: b"
    with pytest.raises(UserError, match=r"takes too much: .*, in the model's chat template"):
        tokenizer.apply_chat_template(talk, chat_template="{{ 'x' * 5000000000 }}", tokenize=False)
    with pytest.raises(jinja2.TemplateError, match="refuses this conversation: no"):
        tokenizer.apply_chat_template(talk, chat_template="{{ raise_exception('no') }}", tokenize=False)
