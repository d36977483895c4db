"""Where step times come from: a roofline, operator tables, an exported profile."""
