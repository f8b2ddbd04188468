#!/usr/bin/env bash
# The guess: a JSON schema that compiles to a grammar is kept by what is sampled under the grammar. A keyword that the
# library cannot express is refused, as llguidance refuses it.
#
# What happens: xgrammar compiles schemas with `not`, `uniqueItems`, `contains` and `dependentRequired` without an
# error, and its grammar accepts texts that break them. `maximum` and `multipleOf` are kept.
#
# Why it matters: "structured output" is taken as valid without a check of its own, for the arguments of tool calls or
# as a reward. Validate the text against the schema also when a grammar was on.
#
# Versions: xgrammar 0.2.9, llguidance 1.7.6, torch 2.13.0. Date: 2026-11-28.
#
# Seen:
#   xgrammar 0.2.9 llguidance 1.7.6
#   xgrammar accepts a text that breaks: not uniqueItems contains dependentRequired
#   llguidance refuses a schema with:    not uniqueItems contains dependentRequired
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 \
    xgrammar==0.2.9 llguidance==1.7.6 torch==2.13.0 transformers==5.23.0 numpy==2.4.6 jsonschema==4.26.0

environment/bin/python - <<'PYTHON'
import json
import sys
from importlib.metadata import version

import jsonschema
import llguidance
import xgrammar

print("xgrammar", version("xgrammar"), "llguidance", version("llguidance"))
vocabulary = [*map(chr, range(32, 127)), "</s>"]
END = len(vocabulary) - 1
compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[END]))
CASES = {  # a schema, and a text that it forbids
    "not": ({"not": {"type": "string"}}, '"a"'),
    "uniqueItems": ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1, 1]"),
    "contains": ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 3}}, "[1]"),
    "dependentRequired": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "dependentRequired": {"a": ["b"]},
        },
        '{"a": 1}',
    ),
    "maximum": ({"type": "integer", "maximum": 5}, "7"),
    "multipleOf": ({"type": "integer", "multipleOf": 5}, "7"),
}
accepted, refused = [], []
for keyword, (schema, text) in CASES.items():
    assert not jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema)))
    if matcher.accept_string(text) and matcher.accept_token(END):
        accepted.append(keyword)
    if llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))):
        refused.append(keyword)
print("xgrammar accepts a text that breaks:", *accepted)
print("llguidance refuses a schema with:   ", *refused)

if accepted != ["not", "uniqueItems", "contains", "dependentRequired"] or refused != accepted:
    sys.exit("changed: other keywords are kept or refused")
PYTHON
