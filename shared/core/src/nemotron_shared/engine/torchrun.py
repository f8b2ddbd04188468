"""torchrun, but when stopped it exits like a step: with code 130 and no traceback.

python -m nemotron_shared.engine.torchrun --nproc-per-node=2 -m stages.sft.train -c tiny
"""

import sys

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.run import main

from nemotron_shared.system.stop import STOPPED_EXIT_CODE

if __name__ == "__main__":
    try:
        main()
    except SignalException:  # every rank has saved and ended by now
        sys.exit(STOPPED_EXIT_CODE)
