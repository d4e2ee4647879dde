"""How the command line is parsed and printed: parsers with hints, help that fits the terminal."""
