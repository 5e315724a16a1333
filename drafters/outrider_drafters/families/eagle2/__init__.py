"""EAGLE-1/2 and HASS."""
