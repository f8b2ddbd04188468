"""The type checker alone finds who reads a setting."""

import pytest
import rename_keys


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eval_interval", "seq_length", "synthetic_choices"])
def test_a_renamed_key_fails_the_type_check(name: str) -> None:
    assert rename_keys.errors([rename_keys.keys()[name]])


def test_the_keys_are_found_with_their_places() -> None:
    keys = rename_keys.keys()
    assert len(keys) > 200
    assert keys["train"].is_section and not keys["lr"].is_section
    assert len(keys["name"].declared) > 5
