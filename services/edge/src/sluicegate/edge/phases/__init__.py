"""What happens to a request, phase by phase. `order` says in which order; each phase has a file."""
