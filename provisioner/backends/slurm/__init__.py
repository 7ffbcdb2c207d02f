"""The kind ``slurm``: jobs of a Slurm cluster, by slurmrestd."""
