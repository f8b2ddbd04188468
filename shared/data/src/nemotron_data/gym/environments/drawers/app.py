"""The environment as a resources server of NeMo-Gym (0.4.0 and later): for ng_run, and NeMo-RL on a cluster."""

import sys
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
from pydantic import BaseModel, ConfigDict, Field

sys.path.insert(0, str(Path(__file__).parent))
import drawers


class Find(BaseModel):
    name: str


class Open(BaseModel):
    box: str


class Row(BaseModel):
    model_config = ConfigDict(extra="allow")


class Verify(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")


class Verified(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class DrawersServer(SimpleResourcesServer):
    config: BaseResourcesServerConfig
    episodes: dict[str, Any] = Field(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/find")(self.find)
        app.post("/open")(self.open)
        return app

    async def seed_session(self, request: Request, body: Row) -> BaseSeedSessionResponse:
        self.episodes[request.session[SESSION_ID_KEY]] = drawers.Episode(body.model_dump())
        return BaseSeedSessionResponse()

    async def find(self, request: Request, body: Find) -> dict[str, str]:
        return self.episodes[request.session[SESSION_ID_KEY]].find(body.name)

    async def open(self, request: Request, body: Open) -> dict[str, str]:
        return self.episodes[request.session[SESSION_ID_KEY]].open(body.box)

    async def verify(self, request: Request, body: Verify) -> Verified:
        episode = self.episodes.pop(request.session[SESSION_ID_KEY])  # nobody closes sessions in 0.4.0
        output = [item.model_dump() for item in body.response.output]
        said = [item for item in output if item["type"] == "message" and item["role"] == "assistant"]
        answer = "".join(part.get("text", "") for part in said[-1]["content"]) if said else ""
        return Verified(**(body.model_dump() | episode.verify(answer, output)))


if __name__ == "__main__":
    DrawersServer.run_webserver()
