"""The inputs that a bundle is compared on: files, held-out data, a sentence, or random inputs."""
