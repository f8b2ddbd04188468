#!/usr/bin/env bash
# What each member is made of, as CycloneDX 1.5, from uv.lock alone: no network, and nothing is installed.
#   ci/sbom.sh dist/sbom          writes dist/sbom/nemotron-sft.cdx.json and so on
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: ci/sbom.sh FOLDER}

mkdir -p "$folder"
sed -n 's/^name = "\(nemotron-[a-z]*\)"$/\1/p' shared/*/pyproject.toml stages/*/pyproject.toml | while read -r member; do
    uv export --frozen --quiet --no-dev --all-extras --package "$member" --format cyclonedx1.5 --preview-features sbom-export \
        --output-file "$folder/$member.cdx.json" >/dev/null
    echo "$folder/$member.cdx.json"
done
