"""The provider side: connections, pools, requests."""
