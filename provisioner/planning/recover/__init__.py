"""What is made again from what is left, and what a release of the brake sets going."""
