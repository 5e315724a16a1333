"""Several draft heads on one client, and the choice of the tree that is sent."""
