"""The hardware that models run on, how well it is used, and what that costs in energy."""
