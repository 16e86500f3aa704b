"""Many machines: replicas of the server on Ray Serve, and large files on workers of Ray.

This package needs the extra `ray`, which nothing else imports.
"""

from .application import app, application
from .files import run_file

__all__ = ["app", "application", "run_file"]
