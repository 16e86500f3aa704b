"""The inputs that a bundle is compared on: files, held-out data, or random inputs."""
