"""NeMo-Gym's own agent and model server, unmodified, in one process without Ray.

    .engines/nemo_gym/bin/python gym_agents.py CONFIG.yaml

The config is one that `ng_dump_config` has resolved, with a host and a port for each server. The resources server is
served elsewhere. Prints `ready` when the others listen.
"""

import asyncio
import sys
from importlib import import_module
from typing import Any

import nemo_gym.global_config as global_config
import uvicorn
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf

CLASSES = {
    "responses_api_agents": ("responses_api_agents.simple_agent.app", "SimpleAgent"),
    "responses_api_models": ("responses_api_models.vllm_model.app", "VLLMModel"),
}


def built(known: Any, name: str, kind: str) -> tuple[Any, int]:
    """The app of a section, and its port."""
    module, of = CLASSES[kind]
    server_class = getattr(import_module(module), of)
    (settings,) = OmegaConf.to_container(known[name][kind]).values()
    config = server_class.model_fields["config"].annotation.model_validate({**settings, "name": name})
    head = BaseServerConfig(**known["head_server"])
    server = server_class(config=config, server_client=ServerClient(head_server_config=head, global_config_dict=known))
    app = server.setup_webserver()
    server.setup_exception_middleware(app)
    return app, settings["port"]


async def main(file: str) -> None:
    known = OmegaConf.load(file)
    global_config._GLOBAL_CONFIG_DICT = known
    sections = [
        (name, kind) for name, one in known.items() if OmegaConf.is_dict(one) for kind in CLASSES if kind in one
    ]
    servers = [
        uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
        for app, port in (built(known, name, kind) for name, kind in sections)
    ]
    running = [asyncio.create_task(server.serve()) for server in servers]
    while not all(server.started for server in servers):
        await asyncio.sleep(0.05)
    print("ready", flush=True)
    await asyncio.gather(*running)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
