"""An agent of LangChain with our tools, which runs in an environment of its own.

LangChain's adapter needs mcp 1, the service mcp 2. Arguments: the address of the tools, and that
of the model. It prints what the agent was offered, read and said, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI


async def main(tools_at: str, model_at: str) -> None:
    servers: Any = {"fairqr": {"transport": "streamable_http", "url": tools_at}}
    tools = await MultiServerMCPClient(servers).get_tools()
    agent = create_agent(ChatOpenAI(model="fake", base_url=model_at, api_key="sk-none"), tools)
    state = await agent.ainvoke({"messages": [{"role": "user", "content": "Physicists?"}]})
    *_, read, said = state["messages"]
    ranking = read.artifact["structured_content"]["ranking"]
    print(json.dumps({"ranks": [it["rank"] for it in ranking], "said": said.content}))


asyncio.run(main(*sys.argv[1:]))
