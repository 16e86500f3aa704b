"""The protocols of the server, one per module; http has the parts they share."""
