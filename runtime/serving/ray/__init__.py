"""Many machines: replicas of the server on Ray Serve, and large files on workers of Ray.

Only this package needs the extra `ray`.
"""

from .application import app, application
from .files import run_file

__all__ = ["app", "application", "run_file"]
