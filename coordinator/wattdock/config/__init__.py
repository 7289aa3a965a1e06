"""What a person writes: experiments, their workload and the backend's own section."""
