"""The client side: protocol, paths, responses, deadlines."""
