"""Studies of the pair, its drafters, features and links, a package a subject."""
