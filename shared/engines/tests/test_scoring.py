"""Models that give a text a number: padding, other texts and the padding token's id change nothing."""

from pathlib import Path

import pytest
import torch
from support import make_model
from zoo import write

from nemotron_engines.modeling.build import ONLY_MADE, load_model, save_model
from nemotron_engines.modeling.scoring import load_scoring, score_of, scoring_class, with_score
from nemotron_shared.system.errors import UserError

LENGTHS = (9, 23, 14, 5)


@pytest.mark.parametrize("kind", ["super3_tiny", "qwen3", "llama"])
def test_a_score_depends_on_its_own_text_alone(kind: str, tmp_path: Path) -> None:
    """Alone and in batches, however long the others are; also where the last token is the padding token."""
    if kind == "super3_tiny":
        make_model(tmp_path / "below")
    else:
        write(kind, tmp_path / "below")
    model = with_score(load_model(tmp_path / "below", ONLY_MADE), 3).eval()
    texts = [torch.randint(5, 200, (length,), generator=torch.Generator().manual_seed(length)) for length in LENGTHS]
    for padding in (0, int(texts[0][-1])):
        model.config.pad_token_id = padding
        alone = [score_of(model, text.tolist()) for text in texts]
        assert len(set(alone)) == len(LENGTHS)
        assert alone[0] != score_of(model, texts[0][:-1].tolist()), "the last token counts"
        for chosen in ((0, 1), (3, 0, 2), (0, 0, 1, 2, 3)):
            longest = max(LENGTHS[number] for number in chosen)
            ids, mask = (torch.full((len(chosen), longest), fill) for fill in (padding, 0))
            for row, number in enumerate(chosen):
                ids[row, : LENGTHS[number]], mask[row, : LENGTHS[number]] = texts[number], 1
            with torch.no_grad():
                found = model(input_ids=ids, attention_mask=mask).logits[:, 0].tolist()
            assert found == pytest.approx([alone[number] for number in chosen], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", ["super3_tiny", "qwen3"])
def test_a_saved_model_scores_as_before_and_is_no_language_model(kind: str, tmp_path: Path) -> None:
    below, folder = tmp_path / "below", tmp_path / "scores"
    folder.mkdir()
    if kind == "super3_tiny":
        make_model(below)
    else:
        write(kind, below)
    model = with_score(load_model(below, ONLY_MADE), 3).eval()
    save_model(model, below, folder)
    assert score_of(load_scoring(folder, ONLY_MADE), [7, 8, 9]) == score_of(model, [7, 8, 9])
    with pytest.raises(UserError, match=r"not those of its config.json: .*score.weight"):
        load_model(folder, ONLY_MADE)
    with pytest.raises(UserError, match=r"not those of its config.json: .*score.weight"):
        load_scoring(below, ONLY_MADE)


def test_the_layers_are_those_of_the_language_model_and_the_score_follows_the_seed(tmp_path: Path) -> None:
    make_model(tmp_path)
    below = load_model(tmp_path, ONLY_MADE)
    one, other, again = (with_score(load_model(tmp_path, ONLY_MADE), seed) for seed in (1, 2, 1))
    assert torch.equal(one.score.weight, again.score.weight) and not torch.equal(one.score.weight, other.score.weight)
    assert one.model.state_dict().keys() == below.model.state_dict().keys()
    assert all(map(torch.equal, one.model.state_dict().values(), below.model.state_dict().values()))


def test_an_architecture_without_such_a_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no class for reward models of gpt2"):
        scoring_class(type(load_model(write("gpt2", tmp_path), ONLY_MADE).config))
