"""Making room removes nothing that anything else needs."""

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from store_support import MODEL, PRODUCER, publish

from nemotron_shared.artifacts import Artifact, Parent, Reference, Store
from nemotron_shared.artifacts.housekeeping import INPUTS, clean, plan_cleanup, remove, state_folder
from nemotron_shared.artifacts.starting import DAY, FOLDER, inputs_kept, kept_inputs, named_inputs
from nemotron_shared.system.atomic import write_json
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.lock import this_process

DATA = "super3-sft-data"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "home"))


def test_a_version_that_something_was_made_from_stays(store: Store) -> None:
    data = publish(store, {"a": "1"}, name=DATA)
    publish(store, {"a": "1"}, parents=[data.as_parent("data")])
    with pytest.raises(UserError, match="super3-sft-data:v1 is needed by super3-sft-model:v1"):
        remove(store, Reference(DATA, 1))
    store.set_alias(MODEL, 1, "best")
    assert remove(store, Reference(MODEL, 1)) == ["best"]
    assert remove(store, Reference(DATA, 1)) == []
    assert store.names() == [] and not list((store.root / ".staging").iterdir())
    assert publish(store, {"a": "2"}).reference == f"{MODEL}:v2"  # a number means one artifact for ever


def test_what_a_start_names_stays_until_the_start_ends(store: Store, tmp_path: Path) -> None:
    model, data = publish(store, {"a": "1"}), publish(store, {"a": "1"}, name=DATA)
    other = publish(store, {"a": "2"})
    run = {"family": "super3", "model": "sft:v1", "data": str(data.path), "missing_model": "random", "threads": 1}
    assert named_inputs(store, run) == [Reference(MODEL, 1), Reference(DATA, 1)]
    assert named_inputs(store, {"family": "super3", "models": ["sft", "hf://org/name"]}) == [Reference(MODEL, 2)]
    assert named_inputs(store, {"family": "super3", "name": "qwen3", "model": "sft"}) == []
    assert named_inputs(store, {"family": "nano3", "name": "super3", "model": "sft"}) == [Reference(MODEL, 2)]
    with inputs_kept(store, named_inputs(store, run)):
        for kept in (model, data):
            with pytest.raises(UserError, match="is needed by a step that is starting") as caught:
                remove(store, Reference(kept.manifest.name, 1))
            assert caught.value.remedy == "let it finish, or end it"
        assert plan_cleanup(store, 1).versions == []
        assert remove(store, Reference(MODEL, 2)) == [] and not other.path.exists()
    assert remove(store, Reference(MODEL, 1)) == remove(store, Reference(DATA, 1)) == []
    with inputs_kept(store, [Reference(MODEL, 1)]):  # which is gone
        assert not list((store.home / FOLDER).glob("*.json"))


def test_the_record_of_a_start_that_was_killed_means_nothing_and_one_from_elsewhere_counts_for_a_day(
    store: Store,
) -> None:
    publish(store, {"a": "1"})
    record = store.home / FOLDER / "one.json"
    record.parent.mkdir()

    def recorded(**holder: Any) -> None:
        write_json(record, {"inputs": [f"{MODEL}:v1"], "holder": asdict(replace(this_process(), **holder))})

    recorded(machine="another", host="node7", started=time.time() - 3600)
    with pytest.raises(UserError, match=r"a step that is starting \(process \d+ on node7\)"):
        remove(store, Reference(MODEL, 1))
    recorded(machine="another", host="node7", started=time.time() - 2 * DAY)
    assert not list(kept_inputs(store)) and record.exists()
    recorded(process_started="before")
    recorded(pid=2**22, process_started="1")
    assert not list(kept_inputs(store)) and not record.exists()
    for damaged in ("{", "[]", '{"inputs": 1}', '{"inputs": ["a:v1"], "holder": {}}'):
        record.write_text(damaged)
        assert not list(kept_inputs(store))
    assert remove(store, Reference(MODEL, 1)) == []


def test_a_damaged_version_can_be_removed(store: Store) -> None:
    done = publish(store, {"a": "1"})
    publish(store, {"a": "1"}, name=DATA)
    (done.path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="the inputs of super3-sft-model:v1 are unknown") as caught:
        plan_cleanup(store, 1)
    assert caught.value.remedy and "nemotron artifacts rm super3-sft-model:v1" in caught.value.remedy
    remove(store, Reference(MODEL, 1))
    assert plan_cleanup(store, 1).versions == []


@pytest.mark.parametrize("parents", [None, 1, "ab", [1], ["a"], [{}], [{"reference": None}], {"reference": "a:v1"}])
def test_an_older_layout_with_parents_of_another_form_is_one_error(store: Store, parents: Any) -> None:
    file = publish(store, {"a": "1"}).path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema_version": 1, "parents": parents}))
    with pytest.raises(UserError, match=r"'parents' is not a list of references, so the inputs of"):
        plan_cleanup(store, 1)
    remove(store, Reference(MODEL, 1))


@pytest.mark.parametrize("inputs", [None, 1, [1, None], {"a": 1}])
def test_inputs_of_a_run_of_another_form_name_nothing(store: Store, inputs: Any) -> None:
    publish(store, {"a": "1"})
    (store.home / "runs" / "x").mkdir(parents=True)
    write_json(store.home / "runs" / "x" / INPUTS, inputs)
    assert plan_cleanup(store, 1).versions == []


def test_artifacts_that_were_made_from_each_other_are_named(store: Store) -> None:
    publish(store, {"a": "1"}, parents=[Parent(f"{MODEL}:v1", "a" * 64, "model")])
    with pytest.raises(UserError, match=r"super3-sft-model:v1 from super3-sft-model:v1") as caught:
        plan_cleanup(store, 1)
    assert caught.value.remedy


def test_a_cleanup_keeps_the_newest_the_named_and_all_they_come_from(store: Store) -> None:
    data = [publish(store, {"a": str(number)}, name=DATA) for number in range(6)]
    for number in range(5):
        publish(store, {"a": str(number)}, parents=[data[number].as_parent("data")])
    store.set_alias(MODEL, 2, "best")
    run = store.home / "runs" / "super3-sft-model-abc"
    run.mkdir(parents=True)
    write_json(run / INPUTS, [f"{DATA}:v4"])
    # models: 5 is the newest, 2 has an alias. data: 6 is the newest, 5 and 2 were read for those, 4 is being read.
    cleanup = plan_cleanup(store, 1)
    assert sorted(map(str, cleanup.versions)) == [f"{DATA}:v1", f"{DATA}:v3", *(f"{MODEL}:v{n}" for n in (1, 3, 4))]
    assert sorted(map(str, plan_cleanup(store, 4).versions)) == [f"{DATA}:v1", f"{MODEL}:v1"]
    assert store.versions(MODEL) == [1, 2, 3, 4, 5]  # nothing has been removed so far
    assert cleanup.size(store) > 0
    store.use_again(store.load(MODEL, 3))
    assert f"{MODEL}:v3" not in map(str, plan_cleanup(store, 1).versions)
    clean(store, plan_cleanup(store, 1))
    assert (store.versions(DATA), store.versions(MODEL)) == ([2, 3, 4, 5, 6], [2, 3, 5])
    with pytest.raises(UserError, match="the unfinished run super3-sft-model-abc"):
        remove(store, Reference(DATA, 4))


def test_the_newest_of_each_fine_tuning_stays_and_what_was_measured_of_it(store: Store) -> None:
    def trained(*, by: str | None = None) -> Artifact:
        config = f"'/home/ann b/.nemotron/finetune/{by}/train-v1.yaml'" if by else "tiny"
        made = replace(PRODUCER, command=f"python -m stages.sft.train -c {config} run.family=super3")
        return publish(store, {"a": "1"}, producer=made)

    models = [trained(), trained(by="chats-1"), trained(by="notes-2"), trained(by="chats-1"), trained(by="notes-2")]
    for model in models:
        publish(store, {"a": "1"}, name="super3-eval-results", parents=[model.as_parent("model")])
    results = [f"super3-eval-results:v{number}" for number in (2, 3)]
    offered = sorted(map(str, plan_cleanup(store, 1).versions))
    assert offered == [*results, f"{MODEL}:v2", f"{MODEL}:v3"]
    assert plan_cleanup(store, 2).versions == []


def test_an_evaluation_of_more_models_does_not_replace_the_comparison_of_a_fine_tuning(store: Store) -> None:
    command = "python -m stages.sft.train -c .nemotron/finetune/chats-1/train-v1.yaml"
    base = publish(store, {"a": "1"}, name="super3-pretrain-model")
    tuned = publish(store, {"a": "1"}, producer=replace(PRODUCER, command=command))
    aligned = publish(store, {"a": "1"}, name="super3-rl-model")
    both = [base.as_parent("base"), tuned.as_parent("model")]
    for parents in (both, [*both, aligned.as_parent("model")]):
        publish(store, {"a": "1"}, name="super3-eval-results", parents=parents)
    assert plan_cleanup(store, 1).versions == []
    publish(store, {"a": "2"}, name="super3-eval-results", parents=both)
    assert list(map(str, plan_cleanup(store, 1).versions)) == ["super3-eval-results:v1"]


def test_leftovers_of_a_day_ago_go_and_younger_ones_stay(store: Store) -> None:
    publish(store, {"a": "1"})
    old, young = store.root / MODEL / ".tmp-index.json.x", store.root / MODEL / ".tmp-index.json.y"
    copy = store.root / ".staging" / "x-1"
    copy.mkdir(parents=True)
    for path in (old, young):
        path.touch()
    for path in (old, copy):
        os.utime(path, (time.time() - 2 * 24 * 3600,) * 2)
    cleanup = plan_cleanup(store, 1)
    assert sorted(cleanup.leftovers) == sorted([old, copy])
    clean(store, cleanup)
    assert young.exists() and not old.exists() and not copy.exists()


def test_the_kept_state_of_a_training_goes_with_its_version(store: Store) -> None:
    for number in range(3):
        publish(store, {"a": str(number)})
        state_folder(store, Reference(MODEL, number + 1)).mkdir(parents=True)
    states = store.home / "states" / MODEL
    (states / "v9").mkdir()  # of a version that is gone
    remove(store, Reference(MODEL, 1))
    assert sorted(path.name for path in states.iterdir()) == ["v2", "v3", "v9"]
    (states / "v2" / "weights").write_text("12345")
    cleanup = plan_cleanup(store, 1)
    assert cleanup.leftovers == [states / "v9"]
    assert cleanup.size(store) == 5 + sum(file.stat().st_size for file in store.folder(Reference(MODEL, 2)).iterdir())
    clean(store, cleanup)
    assert [path.name for path in states.iterdir()] == ["v3"]
