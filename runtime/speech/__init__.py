"""Speech in, text out: windows of audio over the decoding loop that texts take, too."""
