"""The dashboard's parts: `runner` runs the command line, `mix` turns a mix into tables and back, the others lay out."""
