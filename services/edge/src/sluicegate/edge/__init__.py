"""The data plane: authenticates, limits, routes and streams /v1 requests."""
