"""Two network namespaces, what can be had from them, and the ways in and out."""
