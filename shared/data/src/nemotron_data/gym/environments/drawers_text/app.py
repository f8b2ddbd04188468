"""The environment of this folder as a resources server of NeMo-Gym: for ng_run, and for NeMo-RL on a cluster.

The same file for every environment, with tools or in turns: the logic is the module with the folder's name.
"""

import importlib
import sys
from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, ClassVar

from fastapi import FastAPI, Request
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import SESSION_ID_KEY
from pydantic import BaseModel, ConfigDict, Field, create_model
from resources_servers.gymnasium import GymnasiumServer, extract_text

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))
logic = importlib.import_module(FOLDER.name)


class Row(BaseModel):
    model_config = ConfigDict(extra="allow")


class Verify(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")


class Verified(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class Tools(SimpleResourcesServer):
    ray_enabled: ClassVar[bool] = False  # read since 0.7.0
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
        fields: dict[str, Any] = {  # by aliases, because pydantic keeps some names for itself
            f"argument_{number}": (
                Annotated[one.annotation, Field(alias=one.name)],
                ... if one.default is Parameter.empty else one.default,
            )
            for number, one in enumerate(parameters)
        }
        arguments = create_model(name, **fields)

        async def call(request: Request, body: arguments) -> dict[str, Any]:
            given = {one.name: getattr(body, field) for field, one in zip(fields, parameters, strict=True)}
            return getattr(self.episodes[request.session[SESSION_ID_KEY]], name)(**given)

        return call

    async def seed_session(self, request: Request, body: Row) -> BaseSeedSessionResponse:
        self.episodes[request.session[SESSION_ID_KEY]] = logic.Episode(body.model_dump())
        return BaseSeedSessionResponse()

    async def verify(self, request: Request, body: Verify) -> Verified:
        episode = self.episodes.pop(request.session[SESSION_ID_KEY])  # simple_agent closes no session
        output = [item.model_dump() for item in body.response.output]
        said = [item for item in output if item["type"] == "message" and item["role"] == "assistant"]
        answer = "".join(part.get("text", "") for part in said[-1]["content"]) if said else ""
        return Verified(**(body.model_dump() | episode.verify(answer, output)))


class Turns(GymnasiumServer):
    ray_enabled: ClassVar[bool] = False

    async def reset(self, metadata: dict[str, Any], session_id: str | None = None) -> tuple[str | None, dict[str, Any]]:
        self.session_state[session_id] = episode = logic.Episode(metadata)
        return episode.reset(), {}

    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str | None = None
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        step = {"observation": None, "truncated": False, "info": {}} | self.session_state[session_id].step(
            extract_text(action)
        )
        return step["observation"], step["reward"], step["terminated"], step["truncated"], step["info"]


Server = Tools if getattr(logic, "TOOLS", ()) else Turns

if __name__ == "__main__":
    Server.run_webserver()
