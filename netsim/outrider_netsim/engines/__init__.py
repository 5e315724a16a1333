"""The engines that put a profile under real connections: kernel (netem), tun (user space), proxy (a TCP relay)."""
