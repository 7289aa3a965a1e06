"""What independent repeats say: intervals of their mean, whether two sets of them differ, or are as good as equal."""
