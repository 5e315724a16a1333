"""`python -m outrider_server` is `outrider-server`."""

from outrider_server.cli.app import main

main()
