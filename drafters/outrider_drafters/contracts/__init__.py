"""The contracts of drafters: client half, server half (tap) and the shapes of draft trees."""
