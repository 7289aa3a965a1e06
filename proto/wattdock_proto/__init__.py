"""The wire contract between coordinator and runner, and the code generated from it."""
