"""Contenders of each kind of work, and how they load.

Environments of other tools import these modules, which may lack torch, click and rich. Tools that
are missing are listed too: their failure is reported.
"""
