"""One file per backend that has settings of its own; the file's name is the backend's."""
