"""The environment of this folder as a server of NeMo-Gym in Gymnasium's form.

The same file for every environment of turns: the logic is the module with the folder's name.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from nemo_gym.openai_utils import NeMoGymResponse
from resources_servers.gymnasium import GymnasiumServer, extract_text

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))
logic = importlib.import_module(FOLDER.name)


class Server(GymnasiumServer):
    async def reset(self, metadata: dict[str, Any], session_id: str | None = None) -> tuple[str | None, dict[str, Any]]:
        self.session_state[session_id] = episode = logic.Episode(metadata)
        return episode.reset(), {}

    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str | None = None
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        found = self.session_state[session_id].step(extract_text(action))
        return found.get("observation"), found["reward"], found["terminated"], False, found.get("info", {})


if __name__ == "__main__":
    Server.run_webserver()
