"""A model of Linux's TCP, without clock or I/O: what the engines proxy and virtual send over a link."""
