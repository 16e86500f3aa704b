"""The protocols of the server, each in a module of its own; http has what they share."""
