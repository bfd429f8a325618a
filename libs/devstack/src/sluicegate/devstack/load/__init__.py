"""A load driver that checks every answer it gets. Nothing here knows the gateway."""
