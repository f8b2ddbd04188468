"""What opens doors is taken out of texts, and what only looks like it stays."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemotron_shared.config.references import resolve, value_at
from nemotron_shared.system import redaction
from nemotron_shared.system.redaction import holds_secret, keep_secret, redact, redact_values, with_references

HUB = "hf_" + "aBcDeFgHiJkLmNoPqR" + "sTuVwXyZaBcDeFgH"  # as long as the hub's


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Bearer {HUB} my_{HUB}.", "Bearer *** my_***."),
        ("s3://me:word@bucket/a.jsonl, http://u:p@proxy:80/", "s3://***@bucket/a.jsonl, http://***@proxy:80/"),
        ("see https://x.test/y?sig=1&k=2.", "see https://x.test/y?***."),
        ("engine.overrides.wandb.api_key=0123456789 a=1", "engine.overrides.wandb.api_key=*** a=1"),
        ('{"password": "swordfish", "n": 1}', '{"password": "***", "n": 1}'),
        ("login --token abcdefgh --n 3", "login --token *** --n 3"),
        ("authorization: Bearer abc.def", "authorization: Bearer ***"),
        (f"nvapi-{'aB3-_x9Z' * 8} ghp_{'aB3dE9' * 6} github_pat_{'a' * 22}_{'B1' * 29}c", "*** *** ***"),
        ("key AKIAIOSFODNN7EXAMPLE glpat-aB3_dE9-hI4kL5mN6oP7", "key *** ***"),
        ("see HTTPS://x.test/y?sig=1&k=2 wss://x.test/?token=zz", "see HTTPS://x.test/y?*** wss://x.test/?***"),
        ("az://acct/x?sv=2020&sig=abc%2F&se=1", "az://acct/x?sv=2020&sig=***&se=1"),
        ("https://u:pa/ss@h/x https://u:pa@ss@h, git@h", "https://***@h/x https://***@h, git@h"),
        ("hf://me:pass/word@host/x s3a+x://me:12ab@h, x", "hf://***@host/x s3a+x://***@h, x"),
        (
            "model.overrides.db_pwd=swordfish 'pw': 'swordfish', dbPat=swordfish",
            "model.overrides.db_pwd=*** 'pw': '***', dbPat=***",
        ),
        ("x-access-token:abc123@github.com", "x-access-token:***@github.com"),
        ("Authorization: Token abcdefgh", "Authorization: Token ***"),
        ('"authorization": "ApiKey abc=="', '"authorization": "ApiKey ***"'),
        (f"dckr_pat_{'aB3-' * 6} npm_{'aB3d' * 9} AIza{'aB3-_' * 7} ya29.{'aB3-_' * 5}", "*** *** *** ***"),
        (f"wandb_v1_{'aB3_' * 15} sk-{'aB3' * 16} sk-proj-{'aB-_' * 30}", "*** *** ***"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "hf://org/name@main/a?b hf://org/name:part@v2",
        "PWD=/home/me/x pat=*.jsonl pattern=abcdefgh path=abcdefgh spat=abcdefgh",
        "data_prep.tokenizer.model=./folder eos_token=<|im_end|> max_new_tokens=128000",
        "set HF_TOKEN to a token that may read it: token embeddings are tied",
        "dataset.pad_token=<|endoftext|>, password=null",
        "data_prep.source=/data/hf_chats_of_mine/x.jsonl data_prep.prompt_field=hf_question_of_the_user",
        "math_verify_impl: hf_math_verify, policy.hf_config_overrides: {}, hf_home_of_everybody_in_this_group_here",
        f"hf_{'0123abcd' * 8} {'0123abcd' * 5} sha256:{'0123abcd' * 8} hf_{'0123abcd' * 5}/model.safetensors",
        "sk-learn-pipelines/x nvapi-responses-filtered/a.jsonl ghp_of_the_whole_team_and_more AKIA_DATA xoxb-messages",
        "2,272 tokens/s at 12:30; someone@example.com",
        "http://h:8080/a@b docker://r.test:443/x@sha256:ab s3://b/k:v@2 http://[::1]:80/x@y git.test:8080?x",
        "npm_install_of_the_whole_team_and_more dckr_pat_of_mine ya29.json AIza_data az://data/a?b*.jsonl",
        "the authorization token is missing; ?signature is asked for",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert redact(text) == text


def test_values_of_telling_variables_are_hidden_wherever_they_stand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = tmp_path / "id"
    key.touch()
    for name, value in {
        "MY_DB_PASSWORD": "sword/fish", "WANDB_API_KEY": "0a1b2c3d4e", "SSH_KEY": str(key), "SHORT_TOKEN": "a",
        "TOKENIZERS_PARALLELISM": "enabled",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    said = {"a": ["with sword/fish", ("sword%2Ffish", 3)], "0a1b2c3d4e": None, "b": f"{key} a enabled"}
    assert redact_values(said) == {"a": ["with ***", ["***", 3]], "***": None, "b": f"{key} a enabled"}


@pytest.mark.parametrize(
    "name",
    ["SSHPASS", "MYSQL_PWD", "JWT", "CI_TOKENS", "HF_TOKEN_2", "GITHUB_PAT_2", "OPENAI_KEY_PROD", "KEY_B", "DB_PASS1"],
)
def test_the_names_of_secrets_have_many_forms(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "plainwords")
    assert redact("a plainwords b") == "a *** b"


@pytest.mark.parametrize(
    "name", ["TOKENIZER", "KEYBOARD", "AUTHOR", "PATH_2", "PWD", "HF_TOKEN_PATH", "KEY_FIELD", "COMPASS", "PASSIVE"]
)
def test_names_that_only_sound_like_it_tell_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "plainwords")
    monkeypatch.setenv("MAX_TOKENS", "128000")
    assert redact("a plainwords b, 128000") == "a plainwords b, 128000"


@pytest.mark.parametrize("value", ['pa"ss\nword\\x', "pa'ss\"wörd", "it's a pass"])
def test_a_value_is_hidden_in_the_spellings_of_json_and_python(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PGPASSWORD", value)
    for text in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], f"{[value]}"[2:-2]):
        assert redact(f"a {text} b") == "a *** b"


@pytest.mark.parametrize("value", ["hf_of_our_own_mirror", "12345678", "/wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"])
def test_the_value_of_a_telling_variable_is_hidden_whatever_its_form(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", value)
    assert redact(f"a{value} in /x/{value}/y") == "a*** in /x/***/y"


def test_what_a_config_reads_is_written_as_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_read_by_config", {})
    for name, value in {"TEAM": "canary-team", "DATA": "/data/sets", "COUNT": "1000000", "USER": "somebody"}.items():
        monkeypatch.setenv(name, value)
        keep_secret(name)
    assert redact("canary-team of somebody in /data/sets: 1000000") == "*** of somebody in /data/sets: 1000000"
    assert with_references({"entity": "canary-team"}) == {"entity": "${oc.env:TEAM}"}


@pytest.mark.parametrize(
    "key", ["api_key", "hf_token", "dbPassword", "client-secret", "aws_access_key_id", "credentials", "pw",
     "pwd", "pat", "db_pwd", "dbPwd", "pat-of-mine"],
)  # fmt: skip
def test_a_key_tells_that_its_text_is_secret(key: str) -> None:
    assert redact_values({"a": [{key: "plainsecret"}]}) == {"a": [{key: "***"}]}
    for harmless in ("${oc.env:NAME}", "host:HF_TOKEN", "/run/key.json", "<|im_end|>", None, 5, ""):
        assert redact_values({key: harmless}) == {key: harmless}


@pytest.mark.parametrize(
    "key",
    [
        "tokenizer",
        "max_tokens",
        "tokens_per_step",
        "eos_token",
        "api_key_name",
        "monkey",
        "pattern",
        "path",
        "pwdx",
        "spat",
    ],
)
def test_a_key_that_only_sounds_like_it_does_not(key: str) -> None:
    assert redact_values({key: "plainwords"}) == {key: "plainwords"}


@pytest.mark.parametrize(
    "text",
    [
        '${oc.env:"FOO_DOOR"}',
        "${ oc.env:FOO_DOOR}",
        "${oc.env:${oc.decode:FOO_DOOR}}",
        "${x}",
        "${oc.env:FOO_DOOR,none}",
    ],
)
def test_however_a_config_reads_a_variable_it_is_written_as_a_reference(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(redaction, "_read_by_config", {})
    monkeypatch.setenv("FOO_DOOR", "canary-door")
    tree = OmegaConf.create({"x": "${oc.env:FOO_DOOR}", "y": text})
    resolved = resolve(tree, lambda role, field: None)
    assert resolved["y"] == "canary-door"
    assert with_references(resolved)["y"] == "${oc.env:FOO_DOOR}"
    assert value_at(tree, "y") == "${oc.env:FOO_DOOR}", "and in what another project's config is said in"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("serve --api-key=abcdefghij", "serve --api-key=***"),
        ("curl -H 'X-Api-Key: s3cretvalue'", "curl -H 'X-Api-Key: ***'"),
        ("Bearer abcdefghijklmnop was refused", "Bearer *** was refused"),
        ("api_key: sup3rs3cret", "api_key: ***"),
        ("aws_secret_access_key = wJalr/K7MDENG", "aws_secret_access_key = ***"),
        ("machine h login ann password x", "machine h login ann password ***"),
        (f"wandb login --relogin {'0a' * 20}", "wandb login --relogin ***"),
        (f"x eyJ{'a' * 12}.eyJ{'b' * 12}.sig-1 y", "x *** y"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
         "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----"),
        ("send Authorization: Bearer KEY", "send Authorization: Bearer ***"),
        ("eos_token: <|im_end|>", "eos_token: <|im_end|>"),
        ("password: missing", "password: missing"),
        ("digest eyJhbGciOi of a model", "digest eyJhbGciOi of a model"),
    ],
)  # fmt: skip
def test_secrets_in_headers_files_and_commands_are_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_a_secret_that_somebody_wrote_into_a_script_is_told_from_what_a_shell_puts_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redaction, "_read_by_config", {"team-of-mine": "TEAM"})
    monkeypatch.setenv("DOOR_PASSWORD", "swordfish")
    for text in (f"export X={HUB}", "postgres://me:word@h/db", "--comment=token=abcdefgh", "is it swordfish"):
        assert holds_secret(text), text
    for text in (
        "export HF_TOKEN=$(cat ~/.hub/token)", "export HF_TOKEN=$MY_HUB_VARIABLE", 'curl --token "$MINE" x',
        "curl https://example.org/x?raw=1", "account-of team-of-mine", "module load cuda", "export TOKEN=`cat /etc/x`",
    ):  # fmt: skip
        assert not holds_secret(text), text


@pytest.mark.parametrize("piece", ["http://", "a.b-", "token ", "https://a:", "x"])
def test_the_work_does_not_grow_with_the_square_of_the_text(piece: str) -> None:
    """Every pattern gives up within a bounded number of characters; without that, this takes minutes."""
    redact(piece * (200_000 // len(piece)))
