"""Two network namespaces, their sockets, devices and commands, and TCP into and out of them. Linux only."""
