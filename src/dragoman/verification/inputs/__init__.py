"""What a bundle is compared on: files of texts or audio, held-out data, or random inputs."""
