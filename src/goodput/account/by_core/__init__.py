"""The account of a run whose rows are at hand, added up by the compiled core and by causal rules (see core.h)."""
