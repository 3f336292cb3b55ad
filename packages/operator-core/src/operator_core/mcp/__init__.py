"""The product as an MCP server: tools with which another agent asks Operator, and may hand it work."""
