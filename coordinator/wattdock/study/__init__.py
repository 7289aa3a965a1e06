"""What makes a study survive its coordinator: a journal, records of what was measured, and how to go on from them."""
