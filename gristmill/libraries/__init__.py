"""Libraries: are they installed, which versions have known vulnerabilities, and how large ones are imported and started."""
