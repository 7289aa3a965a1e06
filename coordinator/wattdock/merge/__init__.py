"""From what runner, meter and host saw to one ExperimentResult; pure."""
