"""Sections of a scenario file that have much to say, one module each: `sim.scenario` puts them together."""
