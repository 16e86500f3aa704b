"""A large file as blocks of lines, each decoded on its own, wherever that is, and kept until all
are: an interruption costs what was under way. Who decodes them is not known here.
"""
