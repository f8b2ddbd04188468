"""Make rows to train on: python environments/number_game/rows.py 500 environments/number_game/rows.jsonl"""

import json
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent))
from number_game import make_row

count, file = int(sys.argv[1]), Path(sys.argv[2])
rng = Random(file.name)  # files of other names have other rows
file.write_text("".join(json.dumps(make_row(rng)) + "\n" for _ in range(count)))
