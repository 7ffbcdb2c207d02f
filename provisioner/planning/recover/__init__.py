"""Recovery: make a lost memory again from the inputs that are left."""
