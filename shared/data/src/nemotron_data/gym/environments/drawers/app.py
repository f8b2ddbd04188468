"""The environment of this folder as a resources server of NeMo-Gym: for ng_run, and for NeMo-RL on a cluster.

The same file for every environment with tools: the logic is the module with the folder's name.
"""

import importlib
import sys
from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY
from pydantic import BaseModel, ConfigDict, Field, create_model

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))
logic = importlib.import_module(FOLDER.name)


class Row(BaseModel):
    model_config = ConfigDict(extra="allow")


class Verify(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")


class Verified(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class Server(SimpleResourcesServer):
    config: BaseResourcesServerConfig
    episodes: dict[str, Any] = Field(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        for tool in logic.TOOLS:
            app.post(f"/{tool['name']}")(self.endpoint(tool["name"]))
        return app

    def endpoint(self, name: str) -> Callable[..., Any]:
        """A tool's route; its arguments are checked by the annotations of the method."""
        parameters = list(signature(getattr(logic.Episode, name), eval_str=True).parameters.values())[1:]
        defaults = {one.name: ... if one.default is Parameter.empty else one.default for one in parameters}
        fields: dict[str, Any] = {one.name: (one.annotation, defaults[one.name]) for one in parameters}
        arguments = create_model(name, **fields)

        async def call(request: Request, body: arguments) -> dict[str, Any]:
            given = {key: getattr(body, key) for key in arguments.model_fields}
            return getattr(self.episodes[request.session[SESSION_ID_KEY]], name)(**given)

        return call

    async def seed_session(self, request: Request, body: Row) -> BaseSeedSessionResponse:
        self.episodes[request.session[SESSION_ID_KEY]] = logic.Episode(body.model_dump())
        return BaseSeedSessionResponse()

    async def verify(self, request: Request, body: Verify) -> Verified:
        episode = self.episodes.pop(request.session[SESSION_ID_KEY])  # nobody closes sessions in 0.4.0
        output = [item.model_dump() for item in body.response.output]
        said = [item for item in output if item["type"] == "message" and item["role"] == "assistant"]
        answer = "".join(part.get("text", "") for part in said[-1]["content"]) if said else ""
        return Verified(**(body.model_dump() | episode.verify(answer, output)))


if __name__ == "__main__":
    Server.run_webserver()
