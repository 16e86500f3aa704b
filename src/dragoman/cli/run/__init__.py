"""`dragoman run`"""

from .command import run

__all__ = ["run"]
