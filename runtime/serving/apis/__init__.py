"""Protocols, a file each, over `service.Service`; `http` has what they share."""
