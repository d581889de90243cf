"""`python -m apexbridge.sandbox.launcher N`: serve the server on the socket that it left as descriptor N."""

import socket
import sys

from apexbridge.sandbox.launcher.loop import Launcher

if __name__ == "__main__":
    Launcher(socket.socket(fileno=int(sys.argv[1]))).run()
