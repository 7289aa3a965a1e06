"""Images by content: what they are made from, how they are built and got, and which a publication run starts."""
