"""Ray: replicas of the server on Ray Serve, and decoding of large files on many machines.

Only this package needs the extra `ray`.
"""

from .application import app, application
from .files import run_file

__all__ = ["app", "application", "run_file"]
