"""Where one machine is not enough: replicas of the server on Ray Serve, and large files on workers
of Ray. Needs the extra `ray`, which nothing outside this package imports.
"""

from .application import app, application
from .files import run_file

__all__ = ["app", "application", "run_file"]
