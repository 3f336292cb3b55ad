"""What people and programs can see and do: one interface, on a store here or on a server elsewhere.

The HTTP API, the console, the MCP server, `operator top` and the command line are all made of it:
:class:`~operator_core.api.protocol.Api` says what there is, :class:`~operator_core.api.local.LocalApi` does it on a
store, and :class:`operator_core.client.Client` asks a server that does.
"""
