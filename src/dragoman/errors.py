"""The one exception that users meet."""


class DragomanError(Exception):
    """Something given to Dragoman is not as it must be.

    The message says what was expected and what was found, in words for the user. The command line
    prints it in place of a traceback and exits with status 2.
    """
