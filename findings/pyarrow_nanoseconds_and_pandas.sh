#!/usr/bin/env bash
# The guess: `to_pylist` of a column depends on the column alone. A program that never imports pandas gets the same
# objects, or the same error, whether pandas is installed or not.
#
# What happens: where pandas is missing, nanoseconds that Python's own types cannot hold raise ValueError. Where it is
# installed, a `duration[ns]` becomes a pandas.Timedelta, and a `time64[ns]` becomes a datetime.time that has lost its
# nanoseconds without a word.
#
# Why it matters: rows that go from Parquet through Python objects to Parquet are no longer the same rows, and the
# package that changes them is one that another dependency brought along. Cast to int64 to keep the values.
#
# Versions: pyarrow 26.0.1, pandas 3.1.1. Date: 2026-11-28.
#
# Seen:
#   pyarrow 26.0.1 pandas not installed
#     time64[ns]:   ValueError
#     duration[ns]: ValueError
#   pyarrow 26.0.1 pandas installed
#     time64[ns]:   time, [1001, 2002] became [1000, 2000]
#     duration[ns]: Timedelta, [1001, 2002] became [1001, 2002]
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 pyarrow==26.0.1

cat > program.py <<'PYTHON'
import sys
from importlib.util import find_spec

import pyarrow as pa

pandas = find_spec("pandas") is not None
print("pyarrow", pa.__version__, "pandas", "installed" if pandas else "not installed")


def through_python(column: pa.Array) -> str:
    """Say what becomes of a column that goes through Python objects, as integers."""
    try:
        rows = column.to_pylist()
    except ValueError:
        return "ValueError"
    again = pa.array(rows, column.type).cast(pa.int64()).to_pylist()
    return f"{type(rows[0]).__name__}, {column.cast(pa.int64()).to_pylist()} became {again}"


time = through_python(pa.array([1_001, 2_002], pa.time64("ns")))
duration = through_python(pa.array([1_001, 2_002], pa.duration("ns")))
print("  time64[ns]:  ", time)
print("  duration[ns]:", duration)

expected = ("ValueError", "ValueError")
if pandas:
    expected = ("time, [1001, 2002] became [1000, 2000]", "Timedelta, [1001, 2002] became [1001, 2002]")
if (time, duration) != expected:
    sys.exit(f"changed: expected {expected}")
PYTHON
environment/bin/python program.py
uv pip install --quiet --exclude-newer 2026-11-28 pandas==3.1.1 numpy==2.4.6
environment/bin/python program.py
