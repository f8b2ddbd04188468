#!/usr/bin/env bash
# Are there published vulnerabilities in what uv.lock pins? Asks osv.dev, so it needs a network, and says so without one.
#   ci/audit.sh          0: none known; 1: some, listed; 3: nobody could be asked, which is no all-clear
set -euo pipefail
cd "$(dirname "$0")/.."

if answer=$(uv audit --frozen --preview-features audit "$@" 2>&1); then
    echo "$answer"
    exit 0
fi
echo "$answer"
if grep -qiE "failed to|error sending|dns|connect|timed out" <<<"$answer"; then
    echo "audit: no answer from the advisory service, so nothing was checked; run this where there is a network" >&2
    exit 3
fi
exit 1
