"""An MCP server over the read API, so that assistants can ask where the GPU time of runs went; `goodput mcp`."""
