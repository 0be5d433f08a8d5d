"""The machine a model trains on: its compiler, its device, and how well it is used."""
