"""How far a number may be off because the step times are."""
