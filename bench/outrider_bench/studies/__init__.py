"""Studies of the pair, drafters, features, serving and TCP, one package each."""
