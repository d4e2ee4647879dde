"""Network interfaces."""
