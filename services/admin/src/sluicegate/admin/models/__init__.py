"""Models: what a provider offers, with dated prices."""
