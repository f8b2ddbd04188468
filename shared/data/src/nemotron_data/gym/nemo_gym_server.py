"""Serve an environment with NeMo-Gym, in one process: no ng_run, no Ray, no environment for each server.

    .engines/nemo_gym/bin/python nemo_gym_server.py FOLDER 0 '{"entrypoint": "app.py", ...}'     prints `ready 12001`

Run by the Python of the engine environment `nemo_gym`; nothing of ours is imported. NeMo-Gym's own `run_webserver`
asks a head server for its config, and starts Ray (since 0.7.0 not for servers with `ray_enabled = False`), so this does
what it does around that: config, app, middleware, uvicorn.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

SERVERS = "resources_servers"


def load_app(folder: Path) -> ModuleType:
    """The module app.py of an environment, as NeMo-Gym runs it: in its folder, whose modules it imports by name."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    if folder.parent.name == SERVERS and (spec := importlib.util.find_spec(SERVERS)) is not None:
        places = spec.submodule_search_locations or []
        if str(folder.parent) in places:
            return importlib.import_module(f"{SERVERS}.{folder.name}.app")
    spec = importlib.util.spec_from_file_location("app", folder / "app.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["app"] = module
    spec.loader.exec_module(module)
    return module


def build(folder: Path, port: int, settings: dict[str, Any]) -> Any:
    """The FastAPI app of an environment's server."""
    import nemo_gym.global_config as global_config
    from nemo_gym.base_resources_server import SimpleResourcesServer
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.server_utils import ServerClient
    from omegaconf import OmegaConf

    head = BaseServerConfig(host="127.0.0.1", port=11000)  # never started: it serves configs to other servers
    known = OmegaConf.create({"head_server": {"host": head.host, "port": head.port}, "dry_run": False})
    global_config._GLOBAL_CONFIG_DICT = known
    module = load_app(folder)
    # an app.py of ours names its `Server`; those of the wheel define one class of any name
    servers = [one for _, one in inspect.getmembers(module, inspect.isclass)
               if issubclass(one, SimpleResourcesServer) and one.__module__ == module.__name__]  # fmt: skip
    servers += [module.Server] if module.__name__ == "app" and hasattr(module, "Server") else []
    if not servers:
        raise SystemExit(f"{folder / 'app.py'} has no resources server")
    told = {
        "host": "127.0.0.1",
        "port": port,
        "name": folder.name,
        "entrypoint": "app.py",
        "domain": "other",
        **settings,
    }
    config = servers[-1].model_fields["config"].annotation.model_validate(told)
    server = servers[-1](config=config, server_client=ServerClient(head_server_config=head, global_config_dict=known))
    app = server.setup_webserver()
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    return app


def main(folder: str, port: str, settings: str) -> None:
    """Serve until the process ends. Port 0 takes a free one; says `ready PORT` when it listens."""
    import uvicorn

    listener = socket.socket(proto=socket.IPPROTO_TCP)  # by the protocol asyncio knows that it may send at once
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(port)))
    listener.listen(128)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what NeMo-Gym and the environment print goes to the log
    app = build(Path(folder).resolve(), listener.getsockname()[1], json.loads(settings))
    print(f"ready {listener.getsockname()[1]}", file=output, flush=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main(*sys.argv[1:])
