"""MCP servers whose tools agents may use (`[[mcp_server]]`)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["McpServer"]


class McpServer(BaseModel):
    """One MCP server; its tools are called ``NAME__TOOL``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    """First part of the names of its tools."""
