"""The checks of parity on inputs."""
