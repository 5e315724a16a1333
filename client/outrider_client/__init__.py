"""The client: drafts on the device, has a server verify its drafts, and writes on offline when the link is lost.

Everything that users import is exported here; the modules below are free to move. Names load on first use: `import
outrider_client` alone imports neither torch nor grpc.
"""

import os

import lazy_loader

# gRPC reads this while it is imported. Without it, gRPC logs each failed handshake that the client reports itself.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
