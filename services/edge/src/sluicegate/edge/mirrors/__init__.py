"""Read models of keys and catalogue, fed from KV. Nothing in here asks anybody while a request waits."""
