"""Studies that reproduce what papers measure, or watch over the embedded pair."""
