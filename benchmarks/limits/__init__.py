"""What limits cost and how exact they are, on a whole stack."""
